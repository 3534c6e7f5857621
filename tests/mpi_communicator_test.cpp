// One rank of a test that mpirun starts: mpi_communicator_test --transport=windows|messages.
// Every rank runs the same tests in the same order.
#include "mpi/mpi_communicator.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <string_view>

#include "communicator_conformance.hpp"
#include "cpu/cpu_device.hpp"

namespace strata::test {
namespace {

// Small against kLargeElems, so that collectives need many chunks; odd, so that they do not fit.
MpiOptions options_for(bool windows) { return {.shared_memory = windows, .window = Bytes{50'001}}; }

bool g_windows = true;  // chosen by the command line, before the tests run

void run_as_one_of_many(const RankTest& test) {
  CpuDevice device({.arena = kTestArena});
  const auto communicator = create_mpi_communicator(options_for(g_windows));
  communicator->attach(device);
  RankContext context{*communicator, device};
  test(context);
}

const TestWorld kWorld{"mpi", run_as_one_of_many};
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, testing::Values(kWorld), name_of_world);
INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorFailures, testing::Values(kWorld), name_of_world);

TEST(MpiCommunicator, ChargesWhatItStagesThrough) {
  const auto communicator = create_mpi_communicator(options_for(g_windows));
  const Bytes staging = communicator->staging_bytes();
  if (communicator->size() == 1) {
    EXPECT_EQ(staging, Bytes{0});
  } else {
    EXPECT_GE(staging, 48_KiB);
    EXPECT_LE(staging, 57_KiB);  // the window, a page for its counters and one to align it
  }
}

TEST(MpiCommunicator, RefusesAWindowTooSmallForItsRanks) {
  const auto world = create_mpi_communicator({});
  if (world->size() == 1) GTEST_SKIP() << "any window will do for one rank";
  try {
    create_mpi_communicator({.shared_memory = g_windows, .window = Bytes{100}});
    ADD_FAILURE() << "a window of 100 bytes was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

TEST(MpiCommunicator, KnowsItsLauncher) {
  int size = 0;
  ASSERT_EQ(MPI_Comm_size(MPI_COMM_WORLD, &size), MPI_SUCCESS);
  EXPECT_EQ(launched_by_mpi(), size > 1);
}

// All are enqueued before any is waited for, so that the halves of the windows are reused at full
// speed, from one collective to the next.
TEST(MpiCommunicator, ManyCollectivesInFlight) {
  run_as_one_of_many([](RankContext& context) {
    constexpr std::uint64_t kShard = 3000;
    constexpr int kRepeats = 200;
    const std::uint32_t size = context.communicator.size();
    const StreamId stream = context.device.create_stream("test");
    auto* const data = reinterpret_cast<float*>(context.device.arena().data());
    std::vector<float> ones(kShard * size, 1.0F);
    context.device.copy(stream, data, ones.data(), Bytes{4 * ones.size()},
                        CopyKind::host_to_device);
    for (int i = 0; i < kRepeats; ++i) {
      const ShardedBuffer buffer{data, kShard, DType::fp32};
      context.communicator.reduce_scatter(stream, {&buffer, 1});
      // The sum of ones is the number of ranks everywhere; back to ones for the next round.
      context.device.launch(stream, [=] {
        for (std::uint64_t k = 0; k < kShard * size; ++k) {
          if (data[k] == static_cast<float>(size)) data[k] = 1.0F;
        }
      });
      context.communicator.all_gather(stream, {&buffer, 1});
    }
    std::vector<float> result(ones.size());
    context.device.copy(stream, result.data(), data, Bytes{4 * result.size()},
                        CopyKind::device_to_host);
    context.device.synchronize(context.device.record(stream));
    EXPECT_TRUE(result == ones);
    EXPECT_FALSE(context.communicator.failure());
  });
}

}  // namespace
}  // namespace strata::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    strata::test::g_windows = std::string_view(argv[i]) != "--transport=messages";
  }
  int level = 0;
  if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) return 2;
  const int result = RUN_ALL_TESTS();
  return MPI_Finalize() == MPI_SUCCESS ? result : 2;
}
