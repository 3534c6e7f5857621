// BlockIo in virtual time: disks with declared rates (disk_model.hpp) and no bytes. The files of
// all directories are there, and every request succeeds.
//
// Ownership: the machine outlives the disk. Thread: one.
#pragma once

#include <cstdint>
#include <vector>

#include "files/io_tally.hpp"
#include "strata/block_io.hpp"
#include "virtual/disk_model.hpp"
#include "virtual/virtual_machine.hpp"

namespace strata {

class VirtualDisk final : public BlockIo {
 public:
  // A disk for each of `paces`; the k-th file that is opened lies on disk k modulo their number.
  VirtualDisk(VirtualMachine& machine, const std::vector<DiskPace>& paces);

  std::string_view name() const override { return "virtual"; }
  void prepare_directory(const std::string&, const std::string&, bool) override {}
  FileId open(const FileSpec& spec) override;
  IoAlignment alignment(FileId) const override { return {Bytes{4096}, Bytes{4096}}; }
  bool direct(FileId) const override { return true; }
  void close(FileId, bool) override {}
  void remove_directory(const std::string&, const std::string&) override {}
  void submit(std::span<const IoRequest> requests) override;
  std::size_t poll(std::span<IoResult> results) override;
  int descriptor() const override { return -1; }  // nobody sleeps
  IoCounters counters() const override { return tally_.counters(machine_.now_ns()); }

  // Seconds for which the disks were occupied, over all of them.
  double occupied_seconds() const;

 private:
  struct Disk {
    DiskModel model;
    std::int64_t next_look_ns = -1;  // when start() will be tried
  };

  void start(std::size_t disk);

  VirtualMachine& machine_;
  std::vector<Disk> disks_;
  std::uint32_t files_ = 0;
  std::vector<IoResult> finished_;
  files::IoTally tally_;
};

}  // namespace strata
