#include "schedule_text.hpp"

#include <fmt/format.h>

#include <vector>

#include "layout/layout.hpp"
#include "layout/memory_floor.hpp"
#include "plan/schedule.hpp"
#include "session/session_impl.hpp"
#include "strata/bytes.hpp"
#include "strata/session.hpp"

namespace strata::tool {
namespace {

RecordedStep training_step(std::uint32_t units, std::uint32_t micro_batches) {
  RecordedStep step;
  const auto add = [&](ProgramCall call) { step.calls.push_back(call); };
  const auto release = [&](std::uint32_t unit) {
    step.releases.push_back({static_cast<std::uint32_t>(step.calls.size() - 1), UnitId{unit}});
  };
  add({CallKind::begin_step, {}});
  for (std::uint32_t m = 0; m < micro_batches; ++m) {
    for (std::uint32_t u = 0; u < units; ++u) {
      add({CallKind::gather, UnitId{u}});
      release(u);
    }
    for (std::uint32_t u = units; u-- > 0;) {
      add({CallKind::gather, UnitId{u}});
      add({CallKind::reduce, UnitId{u}});
      release(u);
    }
  }
  add({CallKind::end_step, {}});
  return step;
}

// The slots that the plan's line of them holds.
GatherSlots gather_slots(const Model& model, const Config& config, const MemoryPlan& plan,
                         std::uint32_t ranks) {
  const Layout layout = make_layout(model, ranks);
  const StateTable table = state_table_for(model, config);
  Bytes largest;
  for (std::uint32_t u = 0; u < layout.units.size(); ++u) {
    largest = std::max(largest, gathered_bytes(layout, table, UnitId{u}));
  }
  const std::uint64_t slots = plan.total(Tier::device, MemoryPurpose::gathers) / largest;
  return {.program = config.engine.max_live_units,
          .ahead = static_cast<std::uint32_t>(slots) - config.engine.max_live_units};
}

class Names {
 public:
  explicit Names(const Model& model) : model_(model) {}

  std::string of(UnitId unit) const { return model_.unit(unit).name; }
  std::string of(const ProgramCall& call) const {
    const bool names_unit = call.kind != CallKind::begin_step && call.kind != CallKind::end_step &&
                            call.kind != CallKind::issue;
    return names_unit ? fmt::format("{} {}", name_of(call.kind), of(call.unit))
                      : std::string(name_of(call.kind));
  }
  std::string of(std::span<const UnitId> units) const {
    std::string text;
    for (const UnitId unit : units) text += (text.empty() ? "" : ", ") + of(unit);
    return text;
  }

 private:
  const Model& model_;
};

}  // namespace

std::string schedule_text(const Model& model, const Config& config,
                          const ScheduleQuestion& question) {
  const Bytes windows = question.ranks > 1 ? config.communicator.window : Bytes{};
  const MemoryPlan plan =
      Session::plan_memory(model, config, question.ranks, question.ranks_per_node, {}, windows);
  plan.require_fit();
  if (config.engine.look_ahead == 0) return "engine.look_ahead is 0: nothing runs ahead\n";
  const GatherSlots slots = gather_slots(model, config, plan, question.ranks);
  const auto units = static_cast<std::uint32_t>(model.units().size());
  const Schedule schedule = make_schedule(training_step(units, question.micro_batches), slots);

  const Names names(model);
  std::string text = fmt::format(
      "{} gather slots ({} for the program, {} ahead); at most {} in use\n\n"
      "{:>6}  {:<24} {:<28} {}\n",
      slots.total(), slots.program, slots.ahead, schedule.most_in_use, "call", "", "staged with it",
      "entered with it");
  std::uint32_t staged = 0;
  std::uint32_t entered = 0;
  const std::span<const UnitId> gathers = schedule.gathers;
  for (std::size_t i = 0; i < schedule.calls.size(); ++i) {
    const std::uint32_t now_staged = schedule.staged_at[i];
    const std::uint32_t now_entered = schedule.entered_at[i];
    text += fmt::format("{:>6}  {:<24} {:<28} {}", i, names.of(schedule.calls[i]),
                        names.of(gathers.subspan(staged, now_staged - staged)),
                        names.of(gathers.subspan(entered, now_entered - entered)));
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
    staged = now_staged;
    entered = now_entered;
  }
  return text;
}

}  // namespace strata::tool
