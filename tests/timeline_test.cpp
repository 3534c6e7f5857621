// The timeline of a session: what it enters, and the file that viewers read.
#include "strata/timeline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "strata/error.hpp"
#include "strata/machine.hpp"
#include "support/error_of.hpp"
#include "support/loop_file_system.hpp"

namespace strata::test {
namespace {

nlohmann::json written(const Timeline& timeline, const std::string& path) {
  timeline.write(path, Rank{3});
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(Timeline, EntriesThatOverlapStandInRowsOfTheirOwn) {
  const ScratchDirectory directory;
  Timeline timeline;
  timeline.record(true);
  timeline.add({TimelineRow::nvme, "c", 5'000, 9'000});
  timeline.add({TimelineRow::nvme, "a", 1'000, 4'000});
  timeline.add({TimelineRow::nvme, "b \"quoted\"", 2'000, 6'000});
  timeline.add({TimelineRow::workers, "d", 2'000, 3'000});
  EXPECT_DOUBLE_EQ(timeline.busy_seconds()[static_cast<std::size_t>(TimelineRow::nvme)], 8e-6);
  const nlohmann::json json = written(timeline, directory.path() + "/t.json");
  std::map<std::string, nlohmann::json> entries;
  std::map<int, std::string> rows;
  for (const nlohmann::json& event : json["traceEvents"]) {
    EXPECT_EQ(event["pid"], 3);
    if (event["ph"] == "X") entries[event["name"]] = event;
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
  }
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries["a"]["ts"], 0.0);
  EXPECT_EQ(entries["a"]["dur"], 3.0);
  EXPECT_EQ(entries["c"]["ts"], 4.0);
  EXPECT_EQ(rows[entries["a"]["tid"]], "nvme");
  EXPECT_EQ(rows[entries["c"]["tid"]], "nvme");
  EXPECT_EQ(rows[entries["b \"quoted\""]["tid"]], "nvme (2)");
  EXPECT_EQ(rows[entries["d"]["tid"]], "workers");
}

TEST(Timeline, AFileThatCannotBeWrittenIsNamed) {
  const Timeline timeline;
  const Error error = error_of([&] { timeline.write("/no/such/directory/t.json"); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("/no/such/directory/t.json"));
}

// On a virtual clock the sums can be told beforehand.
TEST(Timeline, ASessionEntersWhatEachResourceDoesWhileItRecords) {
  Config config;
  config.device.kind = Config::DeviceKind::cpu;
  config.budgets.device = 64_MiB;
  config.budgets.host = 64_MiB;
  config.budgets.nvme = 64_MiB;
  config.placement.param = config.placement.optimizer = {0, 0, 1};
  config.placement.grad = {0, 1, 0};
  config.engine.tile = 256_KiB;
  config.nvme.directories = {"/nowhere"};
  Model model;
  for (const char* name : {"first", "second"}) model.add_unit(name, {{"w", {65'536}}});
  SimulatedMachine machine(MachineRates{.disks = {{.latency_s = 0}},
                                        .host_to_device_bytes_per_s = 1e9,
                                        .device_to_host_bytes_per_s = 1e9,
                                        .checksum_bytes_per_s = 1e9,
                                        .update_elems_per_s = 1e9,
                                        .collective_bytes_per_s = 1e9},
                           {.ranks = 2, .ranks_per_node = 2});
  Timeline timeline;
  Session session = Session::open(model, config, machine.backends(config), {.timeline = &timeline});
  const StreamId stream = session.device().create_stream("compute");
  const auto run_step = [&] {
    Step step = session.begin_step();
    for (std::uint32_t u = 0; u < 2; ++u) {
      const GatherLease weights = session.gather(UnitId{u}, stream);
      GradientLease gradients = session.gradients(UnitId{u}, stream);
      [[maybe_unused]] const GradientView view = gradients[TensorId{0}];
      machine.compute(stream, 1e-3);
      session.reduce(std::move(gradients), stream);
    }
    step.end();
    session.synchronize();
  };
  run_step();
  EXPECT_EQ(timeline.size(), 0U);
  const BusySeconds before = session.busy_seconds();
  timeline.record(true);
  run_step();
  timeline.record(false);
  const BusySeconds busy = session.busy_seconds() - before;
  run_step();
  const auto rows = timeline.busy_seconds();
  const auto row = [&](TimelineRow which) { return rows[static_cast<std::size_t>(which)]; };
  EXPECT_NEAR(row(TimelineRow::compute), 2e-3, 1e-4);
  EXPECT_NEAR(row(TimelineRow::nvme), busy.nvme, 1e-9);
  EXPECT_NEAR(row(TimelineRow::host_to_device), busy.host_to_device, 1e-9);
  EXPECT_NEAR(row(TimelineRow::device_to_host), busy.device_to_host, 1e-9);
  EXPECT_NEAR(row(TimelineRow::collectives), busy.collectives, 1e-9);
  EXPECT_NEAR(row(TimelineRow::workers), busy.workers, 1e-9);
  EXPECT_GT(busy.nvme, 0);
  EXPECT_GT(busy.workers, 0);
  EXPECT_GT(busy.collectives, 0);
  EXPECT_GT(row(TimelineRow::program), 0);

  const ScratchDirectory directory;
  std::set<std::string> names;
  const nlohmann::json json = written(timeline, directory.path() + "/t.json");
  for (const nlohmann::json& event : json["traceEvents"]) names.insert(event["name"]);
  for (const char* name :
       {"first", "gather first", "reduce second", "read param first", "read master second",
        "write moment2 first", "write param second", "update first", "verify param second",
        "param first", "gradient second", "end: verdict"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace strata::test
