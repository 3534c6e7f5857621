// Activations: a buffer on the device while the program holds a lease, and a home in between. They
// are fetched ahead in the order in which the step before brought them back, and before there was
// one, those that were stashed last come first.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine.hpp"
#include "strata/error.hpp"

namespace strata {

void Engine::require_not_lent(std::uint32_t index) const {
  if (!activations_[index].lent) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("activation {} is held by a lease already: end that first", index));
}

Task<Engine::LentActivation> Engine::lend_activation_task(std::uint32_t index) {
  require_not_lent(index);
  Activation& activation = activations_[index];
  activation.lent = true;
  if (std::erase(activations_ahead_, index) > 0) drop_fetched_activation(index);
  co_await activation.home_is_settled.passed();
  co_await activation.fetched.passed();
  std::erase(stashed_, index);
  activation.error = nullptr;
  const ActivationHome& home = map_.activation(index);
  if (home.tier == Tier::device) co_return LentActivation{home.memory, activation.ready};
  co_return LentActivation{co_await take_activation_buffer(index), Event{}};
}

Task<std::span<std::byte>> Engine::take_activation_buffer(std::uint32_t index) {
  Activation& activation = activations_[index];
  activation.slot = co_await activation_slots_.acquire(1);
  const std::span<std::byte> buffer = activation_buffer(activation.slot);
  device_.note_lease(buffer);
  co_return buffer;
}

std::span<std::byte> Engine::activation_buffer(const SlabSet& slot) const {
  return slot[0].first(g_.activations.size.value);
}

// The slot is this task's from here on: another use of the activation may have its own.
Task<> Engine::release_activation_buffer(std::uint32_t index, Event last_use) {
  const SlabSet slot = std::move(activations_[index].slot);
  co_await executor_.fired(last_use);
  if (slot.size() > 0) device_.note_release(activation_buffer(slot));
}

Task<> Engine::keep_activation_task(std::uint32_t index, Event last_use) {
  Activation& activation = activations_[index];
  const ActivationHome& home = map_.activation(index);
  activation.lent = false;
  stashed_.push_back(index);
  if (home.tier == Tier::device) {
    activation.ready = last_use;
    co_return;
  }
  activation.home_is_settled.close();
  try {
    device_.wait(copy_out_stream_, last_use);
    const std::byte* from = activation.slot[0].data();
    if (home.tier == Tier::host) {
      // What was fetched from there before, on whatever stream it is used.
      if (activation.ready.recorded()) device_.wait(copy_out_stream_, activation.ready);
      copy_out(activation_label(index), home.memory.data(), from, g_.activations.size);
      co_await executor_.event(device_.record(copy_out_stream_));
    } else {
      TaskGroup pieces;
      for (std::size_t p = 0; p < home.pieces.size(); ++p) {
        pieces.start(store_activation_piece(index, p, from + p * g_.staging.slab.value));
      }
      co_await pieces.join();
    }
  } catch (...) {
    activation.error = std::current_exception();
  }
  co_await release_activation_buffer(index, device_.record(copy_out_stream_));
  activation.home_is_settled.open(executor_);
}

Task<> Engine::store_activation_piece(std::uint32_t index, std::size_t piece,
                                      const std::byte* from) {
  const ExtentId extent = map_.activation(index).pieces[piece];
  const SlabSet slab = co_await activation_slabs_.acquire(1);
  copy_out(activation_label(index), slab[0].data(), from, tile_io_.size(extent));
  co_await executor_.event(device_.record(copy_out_stream_));
  co_await tile_io_.write({.extent = extent, .data = slab[0].data()});
}

std::string Engine::activation_label(std::uint32_t index) const {
  return marks_.on() ? fmt::format("activation {}", index) : std::string();
}

void Engine::fetch_activation(std::uint32_t index) {
  activations_[index].fetched.close();
  background_.start(fetch_activation_task(index));
}

Task<> Engine::fetch_activation_task(std::uint32_t index) {
  Activation& activation = activations_[index];
  try {
    co_await activation.home_is_settled.passed();
    if (activation.error) std::rethrow_exception(activation.error);
    std::byte* const to = (co_await take_activation_buffer(index)).data();
    const ActivationHome& home = map_.activation(index);
    if (home.tier == Tier::host) {
      copy_in(activation_label(index), to, home.memory.data(), g_.activations.size);
    } else {
      TaskGroup pieces;
      for (std::size_t p = 0; p < home.pieces.size(); ++p) {
        pieces.start(load_activation_piece(index, p, to + p * g_.staging.slab.value));
      }
      co_await pieces.join();
    }
    check_links();
  } catch (...) {
    activation.error = std::current_exception();
  }
  activation.ready = device_.record(copy_in_stream_);
  activation.fetched.open(executor_);
  if (std::exchange(activation.dropped, false)) {
    co_await release_activation_buffer(index, activation.ready);
  }
}

Task<> Engine::load_activation_piece(std::uint32_t index, std::size_t piece, std::byte* to) {
  const ExtentId extent = map_.activation(index).pieces[piece];
  SlabSet slab = co_await activation_slabs_.acquire(1);
  co_await tile_io_.read({.extent = extent, .data = slab[0].data()}, IoPriority::gather);
  copy_in(activation_label(index), to, slab[0].data(), tile_io_.size(extent));
  background_.start(hold_until(device_.record(copy_in_stream_), std::move(slab)));
}

Task<Engine::LentActivation> Engine::unstash_task(std::uint32_t index) {
  require_not_lent(index);
  Activation& activation = activations_[index];
  if (std::erase(stashed_, index) == 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("unstash of activation {}, which was not stashed in this step", index));
  }
  unstashed_.push_back(index);
  activation.lent = true;
  const ActivationHome& home = map_.activation(index);
  if (home.tier == Tier::device) {
    fetch_activations_ahead();
    co_return LentActivation{home.memory, activation.ready};
  }
  // One that was dropped while it was fetched is wanted again.
  if (activation.dropped) {
    activation.dropped = false;
  } else if (std::erase(activations_ahead_, index) == 0) {
    fetch_activation(index);
  }
  fetch_activations_ahead();
  co_await activation.fetched.passed();
  if (activation.error) {
    const std::exception_ptr error = std::exchange(activation.error, nullptr);
    activation.lent = false;
    co_await release_activation_buffer(index, activation.ready);
    std::rethrow_exception(error);
  }
  co_return LentActivation{activation_buffer(activation.slot), activation.ready};
}

// Buffers for these are beside those of the program, so that they never take one that it needs.
void Engine::fetch_activations_ahead() {
  if (g_.activations.slots == 0) return;  // all rest on the device
  if (unstashed_before_.empty()) {
    static_cast<void>(std::all_of(stashed_.rbegin(), stashed_.rend(),
                                  [this](std::uint32_t index) { return fetch_ahead(index); }));
    return;
  }
  for (std::size_t i = unstashed_.size(); i < unstashed_before_.size(); ++i) {
    const std::uint32_t next = unstashed_before_[i];
    // What has not been stashed yet is not fetched, and nothing behind it.
    if (std::ranges::find(stashed_, next) == stashed_.end() || !fetch_ahead(next)) return;
  }
}

// False when no more can be fetched ahead.
bool Engine::fetch_ahead(std::uint32_t index) {
  if (activations_ahead_.size() == kActivationsAhead) return false;
  const bool is_there = map_.activation(index).tier == Tier::device;
  if (is_there || activations_[index].dropped ||
      std::ranges::find(activations_ahead_, index) != activations_ahead_.end()) {
    return true;
  }
  activations_ahead_.push_back(index);
  fetch_activation(index);
  return true;
}

void Engine::drop_fetched_activation(std::uint32_t index) {
  Activation& activation = activations_[index];
  if (activation.fetched.is_open()) {
    background_.start(release_activation_buffer(index, activation.ready));
  } else {
    activation.dropped = true;
  }
}

void Engine::drop_fetched_activations() {
  for (const std::uint32_t index : activations_ahead_) drop_fetched_activation(index);
  activations_ahead_.clear();
}

Task<> Engine::end_activation_task(std::uint32_t index, Event last_use, bool wanted_again) {
  activations_[index].lent = false;
  if (wanted_again) stashed_.push_back(index);
  if (map_.activation(index).tier == Tier::device) activations_[index].ready = last_use;
  co_await release_activation_buffer(index, last_use);
}

Task<> Engine::forget_activations_task() {
  drop_fetched_activations();
  stashed_.clear();
  if (!unstashed_.empty()) unstashed_before_.swap(unstashed_);
  unstashed_.clear();
  co_return;
}

Engine::LentActivation Engine::lend_activation(std::uint32_t index) {
  return executor_.run_blocking(lend_activation_task(index));
}

void Engine::keep_activation(std::uint32_t index, Event last_use) {
  executor_.start(background_, keep_activation_task(index, last_use));
}

Engine::LentActivation Engine::unstash(std::uint32_t index) {
  return executor_.run_blocking(unstash_task(index));
}

void Engine::end_activation(std::uint32_t index, Event last_use, bool wanted_again) {
  executor_.start(background_, end_activation_task(index, last_use, wanted_again));
}

void Engine::forget_activations() { executor_.start(background_, forget_activations_task()); }

}  // namespace strata
