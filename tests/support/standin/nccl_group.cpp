// Group calls: what a thread collects between ncclGroupStart and ncclGroupEnd.
#include <algorithm>

#include "support/standin/nccl.hpp"

namespace strata::test::standin {
namespace {

struct Starting {
  std::shared_ptr<Comm> comm;
  ncclComm_t* handle = nullptr;
};

struct Group {
  std::uint64_t run = 0;
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Starting> starting;
  std::vector<Issue> issues;
};

Group& thread_group() {
  thread_local Group group;
  const std::uint64_t run = thread_state().run;
  if (group.run != run) {
    group = {};
    group.run = run;
  }
  return group;
}

bool collide(const Access& a, const Access& b) {
  if (!a.writes && !b.writes) return false;
  const AddressRange left = range_of(a.data, a.size.value);
  const AddressRange right = range_of(b.data, b.size.value);
  return left.begin < right.end && right.begin < left.end;
}

// A group runs as one: nothing orders its collectives.
void check_order(Runtime& runtime, const std::vector<Issue>& issues) {
  for (std::size_t i = 0; i < issues.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool race = std::any_of(
          issues[i].accesses.begin(), issues[i].accesses.end(), [&](const Access& access) {
            return std::any_of(issues[j].accesses.begin(), issues[j].accesses.end(),
                               [&](const Access& other) { return collide(access, other); });
          });
      if (race) {
        runtime.violation(
            fmt::format("collectives {} and {} of a group touch the same bytes, and "
                        "nothing orders them",
                        j, i));
      }
    }
  }
}

void abandon(Runtime& runtime, const Starting& starting) {
  starting.comm->aborted = true;
  starting.comm->clique->dead = true;
  runtime.nccl->comms.remove(*starting.handle);
  *starting.handle = nullptr;
}

ncclResult_t start(Runtime& runtime, Runtime::Lock& lock, const Starting& starting) {
  Comm& comm = *starting.comm;
  if (comm.blocking) {
    runtime.changed.wait(lock,
                         [&] { return comm.clique->complete || comm.aborted || runtime.ending; });
    if (!comm.clique->complete) return ncclSystemError;
  } else {
    comm.polls = runtime.nccl->draw_polls();
  }
  const ncclResult_t result = runtime.nccl->settle(runtime, starting.comm, false);
  if (comm.blocking && result != ncclSuccess) {
    thread_state().nccl_error = comm.clique->message;
    abandon(runtime, starting);
  }
  return result;
}

// The first error, else ncclInProgress if one is.
void combine(ncclResult_t& all, ncclResult_t one) {
  const auto weight = [](ncclResult_t result) {
    return result == ncclSuccess ? 0 : result == ncclInProgress ? 1 : 2;
  };
  if (weight(one) > weight(all)) all = one;
}

ncclResult_t issue(Runtime& runtime, std::vector<Issue> issues) {
  std::vector<std::shared_ptr<Comm>> waiting;
  for (Issue& one : issues) {
    if (one.comm->aborted) {
      refuse_nccl(runtime, ncclInvalidUsage, "communicator {} was aborted inside the group",
                  one.comm->number);
    }
    if (one.comm->blocking) {
      enqueue_collective(runtime, one);
      continue;
    }
    if (std::find(waiting.begin(), waiting.end(), one.comm) == waiting.end()) {
      waiting.push_back(one.comm);
    }
    one.comm->held.push_back(std::move(one));
  }
  ncclResult_t result = ncclSuccess;
  for (const auto& comm : waiting) {
    comm->polls = runtime.nccl->draw_polls();
    combine(result, runtime.nccl->settle(runtime, comm, false));
  }
  return result;
}

ncclResult_t finish(Runtime& runtime, Runtime::Lock& lock, Group group) {
  if (group.error != ncclSuccess) {
    for (const Starting& starting : group.starting) abandon(runtime, starting);
    return group.error;
  }
  check_order(runtime, group.issues);
  ncclResult_t result = ncclSuccess;
  for (const Starting& starting : group.starting) combine(result, start(runtime, lock, starting));
  combine(result, issue(runtime, std::move(group.issues)));
  return result;
}

}  // namespace

ncclResult_t start_in_group(Runtime& runtime, Runtime::Lock& lock, std::shared_ptr<Comm> comm,
                            ncclComm_t* handle) {
  const Starting starting{std::move(comm), handle};
  if (thread_group().depth == 0) return start(runtime, lock, starting);
  thread_group().starting.push_back(starting);
  return ncclSuccess;
}

ncclResult_t issue_in_group(Runtime& runtime, Runtime::Lock&, Issue one) {
  if (thread_group().depth == 0) {
    std::vector<Issue> issues;
    issues.push_back(std::move(one));
    return issue(runtime, std::move(issues));
  }
  thread_group().issues.push_back(std::move(one));
  return ncclSuccess;
}

void spoil_group(ncclResult_t error) {
  Group& group = thread_group();
  if (group.depth > 0 && group.error == ncclSuccess) group.error = error;
}

}  // namespace strata::test::standin

using namespace strata::test::standin;  // NOLINT(google-build-using-namespace): extern "C" below

ncclResult_t ncclGroupStart() {
  return nccl_call("ncclGroupStart", [](Runtime&, Runtime::Lock&) {
    ++thread_group().depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  return nccl_call(
      "ncclGroupEnd",
      [](Runtime& runtime, Runtime::Lock& lock) {
        Group& group = thread_group();
        if (group.depth == 0) {
          refuse_nccl(runtime, ncclInvalidUsage, "there is no group to end");
        }
        if (--group.depth > 0) return ncclSuccess;
        return finish(runtime, lock, std::exchange(group, Group{.run = group.run}));
      },
      [](Runtime& runtime) {
        // A planned failure: the group is over all the same.
        Group& group = thread_group();
        for (const Starting& starting : group.starting) abandon(runtime, starting);
        group = Group{.run = group.run};
      });
}
