// Activations: what the program may do with them.
#include <fmt/format.h>

#include <utility>

#include "session/guard.hpp"
#include "session/session_impl.hpp"

namespace strata {

void SessionImpl::check_activation(std::uint32_t index, std::string_view call) const {
  require_step(true, call);
  const ActivationNeeds& needs = options_.activations;
  if (index >= needs.count) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} of activation {}, but SessionOptions::activations declares {}",
                            call, index, needs.count));
  }
  if (live_activations_ == needs.live) {
    throw Error(ErrorCode::budget_exceeded,
                fmt::format("{} of activation {} while {} activation leases are held; end one "
                            "first or declare more in SessionOptions::activations.live",
                            call, index, needs.live));
  }
}

ActivationLease SessionImpl::lease_of(std::uint32_t index, StreamId stream,
                                      const Engine::LentActivation& lent) {
  if (lent.ready.recorded()) device_->wait(stream, lent.ready);
  ++live_activations_;
  ActivationLease lease;
  lease.session_ = shared_from_this();
  lease.index_ = index;
  lease.stream_ = stream;
  lease.buffer_ = lent.memory.first(options_.activations.size.value);
  return lease;
}

ActivationLease SessionImpl::stash(std::uint32_t index, StreamId stream) {
  return guarded([&] {
    check_activation(index, "stash");
    ActivationLease lease = lease_of(index, stream, engine_->lend_activation(index));
    lease.at_end_ = ActivationLease::AtEnd::stash;
    return lease;
  });
}

ActivationLease SessionImpl::unstash(std::uint32_t index, StreamId stream) {
  return guarded([&] {
    check_activation(index, "unstash");
    return lease_of(index, stream, engine_->unstash(index));
  });
}

void SessionImpl::end_activation(std::uint32_t index, ActivationLease::AtEnd what,
                                 StreamId stream) noexcept {
  const Event last_use = device_->record(stream);
  if (what == ActivationLease::AtEnd::stash) {
    engine_->keep_activation(index, last_use);
  } else {
    engine_->end_activation(index, last_use, what == ActivationLease::AtEnd::keep);
  }
  --live_activations_;
}

ActivationLease::ActivationLease(ActivationLease&&) noexcept = default;

ActivationLease& ActivationLease::operator=(ActivationLease&& other) noexcept {
  if (this != &other) {
    end();
    session_ = std::move(other.session_);
    index_ = other.index_;
    at_end_ = other.at_end_;
    stream_ = other.stream_;
    buffer_ = other.buffer_;
  }
  return *this;
}

ActivationLease::~ActivationLease() { end(); }

void ActivationLease::discard() noexcept {
  at_end_ = AtEnd::drop;
  end();
}

void ActivationLease::keep() noexcept {
  if (at_end_ == AtEnd::drop) at_end_ = AtEnd::keep;
  end();
}

void ActivationLease::end() noexcept {
  if (const auto session = std::exchange(session_, nullptr)) {
    buffer_ = {};
    session->end_activation(index_, at_end_, stream_);
  }
}

}  // namespace strata
