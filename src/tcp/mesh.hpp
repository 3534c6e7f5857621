// The control connections of one launch on this rank, and the thread that serves them. Frames of
// every group (a control plane and each of its splits) travel on the same connections.
//
// Ownership: control planes share a mesh; the last one takes it down, on its own thread.
// Thread: everything that groups and connections know is guarded by mutex(); a function with
// `locked` in its name wants it held. Sockets belong to the mesh's thread.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tcp/sockets.hpp"
#include "tcp/wire.hpp"

namespace strata::tcp {

class Group;

class Mesh {
 public:
  // Takes over the descriptors: one by rank, none (-1) for this one.
  Mesh(std::uint32_t rank, std::vector<Contact> contacts, const std::vector<int>& sockets);
  // Sends what is still to be sent, for a moment at most. Blocks.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  std::uint32_t rank() const { return rank_; }
  const std::vector<Contact>& contacts() const { return contacts_; }
  const Token& token() const { return contacts_.front().token; }
  // The address by which the connection to `peer` goes.
  asio::ip::address address_of(std::uint32_t peer) const { return addresses_[peer]; }

  std::mutex& mutex() { return mutex_; }
  // Notified whenever a group may have something new.
  std::condition_variable& changed() { return changed_; }

  // `members` are ranks of the mesh, by rank of the group. Frames that came before are delivered.
  std::shared_ptr<Group> open_group(std::uint64_t id, std::vector<std::uint32_t> members);
  // Frames of the group are dropped from now on.
  void close_group_locked(std::uint64_t id);

  // In order of the calls, to each of `peers`, as far as they can be reached.
  void send_locked(const std::vector<std::uint32_t>& peers, FrameKind kind, std::uint64_t group,
                   std::span<const std::byte> body);

  // Runs `function` on the mesh's thread.
  void post(std::function<void()> function);

 private:
  using Frame = std::shared_ptr<const std::vector<std::byte>>;

  struct Link {
    explicit Link(asio::io_context& io) : socket(io) {}
    // Only the mesh's thread:
    Tcp::socket socket;
    FrameHeader header;
    std::vector<std::byte> body;
    std::deque<Frame> outgoing;  // the front is being written
    // Guarded by mutex_:
    bool left = false;          // it said so
    std::string lost;           // why the connection ended; empty while it lasts
    std::uint32_t waiting = 0;  // frames of groups that this rank has not opened
  };

  struct EarlyFrame {
    std::uint32_t from = 0;
    FrameKind kind{};
    std::vector<std::byte> body;
  };

  void serve();
  void enqueue(std::uint32_t peer, const Frame& frame);
  void write_front(std::uint32_t peer);
  void drop_outgoing(std::uint32_t peer);
  void read_header(std::uint32_t peer);
  void read_body(std::uint32_t peer);
  void receive(std::uint32_t peer);
  // False when the frame makes no sense.
  bool deliver_locked(std::uint32_t peer);
  bool keep_early_locked(std::uint32_t peer);
  void lose(std::uint32_t peer, const std::string& why);
  void lose_by(std::uint32_t peer, const NetCode& error);
  void wait_until_sent();
  void hang_up();

  const std::uint32_t rank_;
  const std::vector<Contact> contacts_;
  std::vector<asio::ip::address> addresses_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::map<std::uint64_t, std::shared_ptr<Group>> groups_;
  std::map<std::uint64_t, std::vector<EarlyFrame>> early_;  // by group that is not open yet
  std::set<std::uint64_t> closed_groups_;
  std::uint64_t unsent_ = 0;  // frames, counted for each receiver

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; null for this one
  std::thread thread_;
};

}  // namespace strata::tcp
