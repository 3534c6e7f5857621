#include "tcp/tcp_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "ports/host_communicator.hpp"
#include "tcp/launch.hpp"
#include "tcp/payload_plane.hpp"

namespace strata {
namespace {

using tcp::ControlPlane;
using tcp::PayloadPlane;

class TcpCommunicator final : public HostCommunicator {
 public:
  // Collective over the ranks of `control`.
  TcpCommunicator(std::unique_ptr<ControlPlane> control, Bytes staging)
      : plane_(std::move(control)), control_(*plane_), staging_(staging) {
    static_assert(kMaxControlBytes >= kMaxExchange);
    if (size() > 1) {
      payload_.emplace(control_, failure_, std::max(staging, PayloadPlane::least_staging(size())));
    }
    control_.on_failure([this](const Error& error) {
      fail(error);
      wake();
    });
  }

  ~TcpCommunicator() override {
    drain();
    // Before the payload: no function of the control plane runs any more, and peers learn that
    // this rank closes no later than that its connections end.
    plane_.reset();
  }

  std::string_view name() const override { return "tcp"; }
  Rank rank() const override { return Rank{control_.rank()}; }
  std::uint32_t size() const override { return control_.size(); }
  Rank host_rank() const override { return control_.host_rank(); }
  std::uint32_t host_size() const override { return control_.host_size(); }
  Bytes staging_bytes() const override { return payload_ ? payload_->staging_bytes() : Bytes{0}; }

  void attach(Device& device) override {
    set_device(device);
    guarded([&] { return control_.call(ControlCall::attach, {}); });
  }

  std::unique_ptr<Communicator> split(std::uint32_t color, std::uint32_t key) override {
    return guarded([&]() -> std::unique_ptr<Communicator> {
      auto part = std::make_unique<TcpCommunicator>(control_.split(color, key), staging_);
      if (device() != nullptr) part->set_device(*device());
      return part;
    });
  }

  std::vector<std::byte> exchange(std::span<const std::byte> mine) override {
    STRATA_ASSERT(mine.size() <= kMaxExchange, "exchange() is for small messages");
    return guarded([&] { return control_.call(ControlCall::exchange, mine); });
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    control_.set_timeout(timeout);
    wake();
  }

  void abort(std::string_view reason) override {
    control_.give_up(reason);
    failure_.record(Error(ErrorCode::rank_lost, fmt::format("this rank gave up: {}", reason),
                          {.rank = rank()}));
    wake();
  }

 protected:
  void run(const Collective& collective) override;
  void on_first_failure(const Error& error) override { control_.give_up(error.what()); }

 private:
  // The first failure of this communicator, wherever it was met, ends every call.
  template <class Call>
  auto guarded(Call&& call) -> decltype(call()) {
    failure_.throw_if_set();
    try {
      return call();
    } catch (const Error& error) {
      fail(error);
      wake();
      failure_.throw_if_set();
      throw;
    }
  }

  void wake() noexcept {
    if (payload_) payload_->wake();
  }

  std::unique_ptr<ControlPlane> plane_;
  ControlPlane& control_;  // *plane_, also for the plane's thread while the plane ends
  const Bytes staging_;
  std::optional<PayloadPlane> payload_;  // none for one rank
};

void TcpCommunicator::run(const Collective& collective) {
  if (payload_) run_on(*payload_, collective, size());
}

}  // namespace

std::unique_ptr<Communicator> create_tcp_communicator(std::unique_ptr<ControlPlane> control,
                                                      Bytes staging) {
  return std::make_unique<TcpCommunicator>(std::move(control), staging);
}

std::unique_ptr<Communicator> create_tcp_communicator(const TcpOptions& options) {
  return create_tcp_communicator(
      ControlPlane::connect(tcp::launch_from_environment(), options.rendezvous_timeout),
      kTcpStaging);
}

}  // namespace strata
