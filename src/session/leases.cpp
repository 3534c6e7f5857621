// The move-only leases of the public interface.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "session/session_impl.hpp"
#include "strata/bytes.hpp"

namespace strata {

GatherLease::GatherLease(GatherLease&&) noexcept = default;

GatherLease& GatherLease::operator=(GatherLease&& other) noexcept {
  if (this != &other) {
    end();
    session_ = std::move(other.session_);
    unit_ = other.unit_;
    gathering_ = other.gathering_;
    buffer_ = other.buffer_;
    streams_ = other.streams_;
    stream_count_ = other.stream_count_;
    entry_ = std::move(other.entry_);
  }
  return *this;
}

GatherLease::~GatherLease() { end(); }

void GatherLease::end() noexcept {
  if (const auto session = std::exchange(session_, nullptr)) {
    session->end_gather(unit_, GatheringId{gathering_}, std::span(streams_).first(stream_count_),
                        std::exchange(entry_, nullptr));
  }
}

TensorView GatherLease::operator[](TensorId tensor) const {
  return session_->tensor_view(unit_, tensor, buffer_);
}

void GatherLease::also_used_on(StreamId stream) {
  const auto named = std::span(streams_).first(stream_count_);
  if (std::ranges::find(named, stream) != named.end()) return;
  if (stream_count_ == kMostStreams) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a gathered unit can be used on at most {} streams", kMostStreams));
  }
  streams_[stream_count_++] = stream;
}

GradientLease::GradientLease(GradientLease&&) noexcept = default;

GradientLease& GradientLease::operator=(GradientLease&& other) noexcept {
  if (this != &other) {
    end();
    session_ = std::move(other.session_);
    unit_ = other.unit_;
    stream_ = other.stream_;
    buffer_ = other.buffer_;
    wire_ = other.wire_;
  }
  return *this;
}

GradientLease::~GradientLease() { end(); }

void GradientLease::end() noexcept {
  if (const auto session = std::exchange(session_, nullptr)) session->end_gradients(stream_);
}

GradientView GradientLease::operator[](TensorId tensor) {
  return session_->gradient_view(unit_, tensor, buffer_);
}

// The reservation, the bytes and where they go back to.
struct ScratchLease::State {
  std::shared_ptr<SessionImpl> session;
  std::unique_ptr<Reservation> reservation;
  Lease lease;
  std::unique_ptr<HostRegion> host;
  std::span<std::byte> memory;

  ~State() {
    if (host) {
      session->device().unregister_host(memory);
    } else if (!memory.empty()) {
      session->device().note_release(memory);
      session->end_scratch(memory);
    }
  }
};

ScratchLease::ScratchLease() = default;
ScratchLease::ScratchLease(ScratchLease&&) noexcept = default;
ScratchLease& ScratchLease::operator=(ScratchLease&&) noexcept = default;
ScratchLease::~ScratchLease() = default;

std::span<std::byte> ScratchLease::memory() const {
  return state_ ? state_->memory : std::span<std::byte>{};
}

ScratchLease SessionImpl::reserve_outside(Tier tier, Bytes size) {
  ScratchLease lease;
  lease.state_ = std::make_unique<ScratchLease::State>();
  ScratchLease::State& state = *lease.state_;
  state.session = shared_from_this();
  state.reservation =
      std::make_unique<Reservation>(*budgets_[static_cast<std::size_t>(tier)], "outside", size);
  state.lease = state.reservation->lease(size);
  return lease;
}

ScratchLease SessionImpl::scratch(Tier tier, Bytes size) {
  if (tier == Tier::nvme || size == Bytes{}) {
    throw Error(ErrorCode::invalid_argument,
                "scratch() lends device or host memory, at least one byte");
  }
  auto state = std::make_unique<ScratchLease::State>();
  state->session = shared_from_this();
  Budget& budget = *budgets_[static_cast<std::size_t>(tier)];
  state->reservation =
      std::make_unique<Reservation>(budget, "scratch", round_up(size, kPieceAlign));
  if (tier == Tier::host) {
    auto host = std::make_unique<HostRegion>(
        size, HostRegion::Options{
                  .what = "host scratch", .addresses_only = simulation_ != nullptr, .log = log_});
    device_->register_host(host->memory());
    state->memory = host->memory();
    state->host = std::move(host);
  } else {
    const auto piece = surplus_.allocate(size);
    if (!piece) {
      throw Error(ErrorCode::budget_exceeded,
                  fmt::format("scratch of {} does not fit in one piece: the largest hole is {}",
                              format_bytes(size), format_bytes(surplus_.largest_hole())));
    }
    state->memory = *piece;
    device_->note_lease(state->memory);
  }
  state->lease = state->reservation->lease(state->reservation->size());
  ScratchLease lease;
  lease.state_ = std::move(state);
  return lease;
}

}  // namespace strata
