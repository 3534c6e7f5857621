#include "bench_step_run.hpp"

#include <algorithm>
#include <utility>

namespace strata::tool {
namespace {

constexpr unsigned kWarmUp = 2;
constexpr std::uint16_t kSmall = 0x3A83;  // about 1e-3 in bf16

class Program {
 public:
  Program(Session& session, const Compute& compute, const StepWork& work)
      : session_(session),
        stream_(session.device().create_stream("compute")),
        compute_(compute),
        units_(static_cast<std::uint32_t>(session.model().units().size())),
        forward_(work.forward_compute / units_),
        backward_(work.backward_compute / units_) {}

  StepResult step() {
    Step step = session_.begin_step();
    for (std::uint32_t u = 0; u < units_; ++u) {
      const GatherLease weights = session_.gather(UnitId{u}, stream_);
      compute_(stream_, forward_, {});
    }
    for (std::uint32_t u = units_; u-- > 0;) {
      const GatherLease weights = session_.gather(UnitId{u}, stream_);
      GradientLease gradients = session_.gradients(UnitId{u}, stream_);
      const GradientView view = gradients[TensorId{0}];
      compute_(stream_, backward_, [view] {
        std::fill_n(static_cast<std::uint16_t*>(view.data), view.count_elems, kSmall);
      });
      session_.reduce(std::move(gradients), stream_);
    }
    return step.end();
  }

 private:
  Session& session_;
  const StreamId stream_;
  const Compute& compute_;
  const std::uint32_t units_;
  const double forward_;  // seconds of one unit
  const double backward_;
};

}  // namespace

StepRun run_steps(const BenchStepOptions& options, const Config& config, Backends backends,
                  const Compute& compute, const StepWork& work, const Clock& clock,
                  const std::function<void()>& check) {
  Session session = Session::open(step_model(options), config, std::move(backends));
  for (std::uint32_t u = 0; u < options.units; ++u) {
    check();
    session.initialize(UnitId{u}, [](const TensorSlice&, std::span<float> values) {
      std::ranges::fill(values, 0.01F);
    });
  }
  StepRun run;
  Program program(session, compute, work);
  for (unsigned i = 0; i < kWarmUp; ++i) program.step();
  const LinkBytes before = session.bytes_moved();
  std::int64_t last_ns = clock.now_ns();
  for (unsigned round = 0; round < options.rounds; ++round) {
    check();
    run.update_seconds.push_back(program.step().seconds.update);
    const std::int64_t now_ns = clock.now_ns();
    run.seconds.push_back(static_cast<double>(now_ns - std::exchange(last_ns, now_ns)) * 1e-9);
  }
  session.synchronize();
  run.bytes = session.bytes_moved() - before;
  run.schedule = session.schedule_facts();
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const auto index = static_cast<std::size_t>(tier);
    run.reserved[index] = session.usage(tier).reserved;
    run.planned[index] = session.memory_plan().total(tier);
  }
  session.close();
  return run;
}

}  // namespace strata::tool
