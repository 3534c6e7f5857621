// Ranks that call NCCL as a program does, for the tests of the stand-in.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "support/standin/test_programs.hpp"

namespace strata::test::standin {

// One rank: its GPU, stream and communicator.
class RankProgram {
 public:
  RankProgram(int rank, int size, const ncclUniqueId& id, bool blocking) : rank_(rank) {
    expect_ok(cudaSetDevice(rank));
    stream_ = make_stream();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    result_ = until_settled(ncclCommInitRankConfig(&comm_, size, id, rank, &config));
  }
  ~RankProgram() {
    expect_ok(cudaStreamSynchronize(stream_));
    if (comm_ != nullptr) {
      expect_ok(until_settled(ncclCommFinalize(comm_)));
      destroy();
    }
    expect_ok(cudaStreamDestroy(stream_));
  }
  RankProgram(const RankProgram&) = delete;
  RankProgram& operator=(const RankProgram&) = delete;

  ncclResult_t until_settled(ncclResult_t result) {
    while (result == ncclInProgress) {
      ++polls_;
      expect_ok(ncclCommGetAsyncError(comm_, &result));
      std::this_thread::yield();
    }
    return result;
  }

  void abort() {
    expect_ok(ncclCommAbort(comm_));
    comm_ = nullptr;
  }
  void destroy() {
    expect_ok(ncclCommDestroy(comm_));
    comm_ = nullptr;
  }

  int rank() const { return rank_; }
  int polls() const { return polls_; }
  ncclResult_t result() const { return result_; }
  cudaStream_t stream() const { return stream_; }
  ncclComm_t comm() const { return comm_; }

 private:
  const int rank_;
  int polls_ = 0;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  ncclResult_t result_ = ncclSuccess;
};

inline ncclUniqueId make_id() {
  ncclUniqueId id;
  expect_ok(ncclGetUniqueId(&id));
  return id;
}

inline void run_ranks(int size, bool blocking, const std::function<void(RankProgram&)>& test) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RankProgram program(rank, size, id, blocking);
      expect_ok(program.result());
      test(program);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace strata::test::standin
