// The control plane of ranks that are connected by TCP: small all-to-all messages, the notice by
// which a rank that gives up tells its peers, and word of every peer that is lost, at once and
// also while nobody waits.
//
// Every rank makes the same calls in the same order; each message says which call it belongs to,
// so that ranks that diverge get an error naming the calls. The first failure wins and stays: once
// failure() is set, every call() throws it.
// Ownership: planes made by split() share the connections and the thread of their parent, and may
// outlive it.
// Thread: call(), split() and connect_payload() from one thread at a time; the rest from any. One
// thread per connect() serves the connections; no plane may be destroyed on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"
#include "ports/control_messages.hpp"
#include "strata/error.hpp"
#include "strata/types.hpp"
#include "tcp/launch.hpp"

namespace strata::tcp {

class Group;
class Mesh;

class ControlPlane {
 public:
  // Collective over all ranks of the launch, which meet at MASTER_ADDR:MASTER_PORT or exchange
  // their addresses by `all_gather`. Throws Error(config | rank_lost | diverged). Blocks.
  static std::unique_ptr<ControlPlane> connect(const Launch& launch,
                                               std::chrono::milliseconds timeout);
  static std::unique_ptr<ControlPlane> connect(std::uint32_t rank, std::uint32_t size,
                                               const AllGather& all_gather,
                                               std::chrono::milliseconds timeout);

  // Says good-bye; does not wait for peers. A function that on_failure() set does not run later.
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  std::uint32_t rank() const;
  std::uint32_t size() const;
  // Position among, and number of, the ranks of this plane that run on this host.
  Rank host_rank() const;
  std::uint32_t host_size() const;

  // all[r] = what rank r passed to the same call. Every rank passes as many bytes, at most
  // kMaxControlBytes. Throws Error(rank_lost) naming ranks, or Error(diverged); that is then the
  // failure(), and the peers are told. Blocks.
  std::vector<std::byte> call(ControlCall which, std::span<const std::byte> mine);

  // Tells every peer once that this rank gives up, which is then its own failure() too. Does not
  // block, does not throw.
  void give_up(std::string_view reason) noexcept;

  // How long call() waits for a peer. Default 60 s; split() passes it on.
  void set_timeout(std::chrono::milliseconds timeout);
  std::chrono::milliseconds timeout() const;

  // The first loss that was noticed, also while nobody is in call(): a peer's connection broke, a
  // peer gave up, or this rank did. A peer that said good-bye is no loss until call() needs it.
  std::optional<Error> failure() const;

  // Calls `function` once, on the plane's own thread, when failure() becomes set; at once, on the
  // caller's, if it is. It must neither block nor throw. Pre: called once.
  void on_failure(std::function<void(const Error&)> function);

  // How many collectives this rank has enqueued, told to peers when they ask.
  void set_progress(std::uint64_t collectives);

  // What set_progress() was given last on each rank, by rank; nullopt for a peer that did not
  // answer within `wait`. Also after a failure. Blocks up to `wait`.
  std::vector<std::optional<std::uint64_t>> ask_progress(std::chrono::milliseconds wait);

  // The peers that have said good-bye, or wait for this rank in a call of ControlCall::close: they
  // enqueue nothing any more.
  std::vector<std::uint32_t> leaving() const;

  // A control plane of the ranks that pass the same color, ordered by (key, rank). Collective.
  // Throws as call() does. Blocks.
  std::unique_ptr<ControlPlane> split(std::uint32_t color, std::uint32_t key);

  // One more connection to every peer, for payload: non-blocking sockets by rank, none for this
  // rank. Collective. Throws as call() does. Blocks.
  std::vector<Descriptor> connect_payload();

  // Why the payload connection to `peer` ended while this rank was in `what`: what the control
  // connection says about it, for which it waits a moment. Blocks, briefly.
  Error loss_of(std::uint32_t peer, std::string_view what);

 private:
  ControlPlane(std::shared_ptr<Mesh> mesh, std::shared_ptr<Group> group);
  void confirm(std::chrono::milliseconds timeout);

  std::shared_ptr<Mesh> mesh_;
  std::shared_ptr<Group> group_;
};

}  // namespace strata::tcp
