// The places on which a BlockIo of the kernel is tested: O_DIRECT, page cache, 4096-byte sectors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "block_io_conformance.hpp"
#include "files/request_queue.hpp"
#include "support/loop_file_system.hpp"

namespace strata::test {

using MakeIo = std::function<std::unique_ptr<BlockIo>(bool direct, files::QueueDepth depth)>;

class KernelPlace final : public IoPlace {
 public:
  KernelPlace(MakeIo make, bool direct) : make_(std::move(make)), direct_(direct) {}

  std::unique_ptr<BlockIo> make() override { return make_(direct_, {4, 4}); }
  std::unique_ptr<BlockIo> make_serial() const { return make_(direct_, {1, 1}); }
  std::string root() const override {
    return file_system_ ? file_system_->path() : scratch_.path();
  }
  // False, with the reason, where this user or machine may not mount.
  bool put_on_loop_device(const LoopFileSystem::Options& options, std::string& why_not) {
    file_system_ = LoopFileSystem::mount(options, why_not);
    return file_system_ != nullptr;
  }

 private:
  MakeIo make_;
  bool direct_;
  ScratchDirectory scratch_;
  std::unique_ptr<LoopFileSystem> file_system_;
};

// "direct", "page_cache", "sectors_512" and "sectors_4096". `may_make` skips the test with a reason
// where this machine lacks what the adapter needs, and then returns false.
std::vector<IoUnderTest> kernel_io_cases(
    const MakeIo& make, const std::function<bool()>& may_make = [] { return true; });

}  // namespace strata::test
