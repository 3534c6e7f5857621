// How the payload of collectives travels over TCP: one connection per pair of ranks. Gathered
// shards arrive in place; what is to be summed arrives in a staging buffer of fixed size, one half
// of which fills while the other is summed. A rank sends and receives at the same time, so that
// ranks whose socket buffers are full do not wait for each other.
//
// Thread: as every DataPlane; wake() from any.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/descriptor.hpp"
#include "base/first_failure.hpp"
#include "base/wake_event.hpp"
#include "ports/data_plane.hpp"
#include "ports/host_communicator.hpp"
#include "strata/types.hpp"
#include "tcp/control_plane.hpp"
#include "tcp/wire.hpp"

namespace strata::tcp {

class PayloadPlane final : public DataPlane {
 public:
  // Connects to every peer of `control`, which outlives this, as does `failure`, which ends waits.
  // Collective. Pre: more than one rank. Blocks.
  PayloadPlane(ControlPlane& control, const FirstFailure& failure, Bytes staging);

  // The least staging that works with so many ranks.
  static Bytes least_staging(std::uint32_t ranks);

  void all_gather(const Shards& shards) override;
  void reduce_scatter(const Shards& shards) override;
  void broadcast(std::byte* data, std::uint64_t size_bytes, std::uint32_t root) override;
  Bytes staging_bytes() const override { return Bytes{staging_.size()}; }

  // Makes a wait look at `failure`.
  void wake() noexcept { wake_.raise(); }

 private:
  using Clock = std::chrono::steady_clock;

  // What goes between this rank and one peer in one collective: in each direction nothing at all,
  // or a header and bytes.
  struct Traffic {
    bool sends = false;
    bool receives = false;
    std::span<const std::byte> outgoing;
    std::uint64_t incoming_bytes = 0;
    PayloadHeader sent_header;
    PayloadHeader received_header;
    std::uint64_t sent = 0;      // with the header
    std::uint64_t received = 0;  // with the header

    bool all_sent() const { return !sends || sent == sizeof(sent_header) + outgoing.size(); }
    bool all_received() const {
      return !receives || received == sizeof(received_header) + incoming_bytes;
    }
    bool in_header() const { return received < sizeof(received_header); }
    std::uint64_t payload_received() const {
      return in_header() ? 0 : received - sizeof(received_header);
    }
  };

  std::uint32_t rank() const { return control_.rank(); }
  std::uint32_t size() const { return control_.size(); }

  void begin(CollectiveOp op);
  void send_to(std::uint32_t peer, std::span<const std::byte> bytes);
  void receive_from(std::uint32_t peer, std::uint64_t size_bytes);

  // Moves the traffic that was begun. place(peer, offset) is where the peer's bytes from `offset`
  // on go, empty while there is no room; landed() runs when more may have come.
  template <class Place, class Landed>
  void move(Place&& place, Landed&& landed);
  template <class Place>
  bool move_some(Place&& place);
  template <class Place>
  void wait_for_peers(Place&& place, Clock::time_point last_progress);
  bool send_some(std::uint32_t peer);
  bool receive_header(std::uint32_t peer);
  // How many bytes came; 0 when none are there yet.
  std::size_t receive_some(std::uint32_t peer, std::byte* data, std::uint64_t limit);
  void check_header(std::uint32_t peer) const;
  bool is_done() const;
  std::vector<std::uint32_t> awaited() const;

  // Where chunk `chunk` from `peer` is staged.
  std::byte* slot(std::uint64_t chunk, std::uint32_t peer);
  std::uint64_t least_received() const;

  ControlPlane& control_;
  const FirstFailure& failure_;
  WakeEvent wake_;
  std::vector<Descriptor> sockets_;  // by rank
  std::vector<std::byte> staging_;
  std::uint64_t slice_bytes_ = 0;

  // Of the collective that runs:
  CollectiveOp op_{};
  std::uint64_t sequence_ = 0;
  std::vector<Traffic> traffic_;     // by rank
  std::vector<pollfd> polled_;       // by rank, and the wake event last
  std::vector<const void*> inputs_;  // of one sum, by rank
};

}  // namespace strata::tcp
