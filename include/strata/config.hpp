// The configuration of a session: one strict JSON file, the one that `strata tune` writes and
// Session::open reads. docs/config.md lists every key with its default, range and meaning; it is
// generated from the same table that the parser uses. A Config is a plain value: fill it in code
// or read it from a file, then hand it to Session::open, which checks it again. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "strata/error.hpp"
#include "strata/types.hpp"

namespace strata {

// How the bytes of one state kind are spread over the tiers; each in [0, 1], together 1.
struct TierFractions {
  double device = 1;
  double host = 0;
  double nvme = 0;
  bool automatic = false;  // of gradients: the budgets decide, and the fractions are 0
  bool operator==(const TierFractions&) const = default;
};

struct Config {
  enum class BudgetScope : std::uint8_t { per_rank, per_node };
  enum class Nonfinite : std::uint8_t { skip, abort };
  enum class IoBackend : std::uint8_t { automatic, io_uring, posix };
  enum class Verify : std::uint8_t { always, off };
  enum class DeviceKind : std::uint8_t { automatic, cpu, cuda };
  enum class DeviceAllocator : std::uint8_t { malloc, pool };
  enum class Masters : std::uint8_t { fp32, same_as_param };
  enum class LossScaleKind : std::uint8_t { automatic, none, fixed, dynamic };

  // Hard limits of bytes per tier; the scope says whether the ranks of one node share them.
  struct Budgets {
    Bytes device = 1_GiB;
    Bytes host = 4_GiB;
    Bytes nvme{0};
    BudgetScope scope = BudgetScope::per_rank;
    bool operator==(const Budgets&) const = default;
  };

  // What computes. `automatic`: a GPU if this build has CUDA and one is visible, else the CPU. Of
  // several visible GPUs a rank takes the one with its position on its host.
  struct Device {
    DeviceKind kind = DeviceKind::automatic;
    DeviceAllocator allocator = DeviceAllocator::malloc;
    bool operator==(const Device&) const = default;
  };

  // Where each kind of state rests between uses.
  struct Placement {
    TierFractions param;
    TierFractions grad;
    TierFractions optimizer;
    TierFractions activation;  // by number: what is stashed first rests farthest away
    bool operator==(const Placement&) const = default;
  };

  // Files go to DIR/<run>/rank-<r>/ for each of the directories, which must exist.
  struct Nvme {
    std::vector<std::string> directories;
    std::vector<double> weights;  // one for each directory; empty: equal
    std::string run = "default";
    bool allow_tmpfs = false;
    IoBackend backend = IoBackend::automatic;
    unsigned queue_depth = 16;
    unsigned write_depth = 0;  // 0: half of queue_depth
    Verify verify = Verify::always;
    unsigned spare_slots = 0;
    double retry_s = 5;
    double timeout_s = 60;
    bool operator==(const Nvme&) const = default;
  };

  // A file that names no `reduce` gets the type of `param`.
  struct Precision {
    DType param = DType::bf16;
    DType reduce = DType::bf16;
    Masters master = Masters::fp32;
    DType moments = DType::fp32;  // fp32 or bf16
    bool operator==(const Precision&) const = default;
  };

  struct Optimizer {
    std::string name = "adamw";
    double learning_rate = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;
    double momentum = 0;  // of sgd
    bool nesterov = false;
    double clip_norm = 0;  // 0: no clipping
    Nonfinite nonfinite = Nonfinite::skip;
    bool in_backward = false;
    bool operator==(const Optimizer&) const = default;
  };

  // What the loss is multiplied by, so that gradients of fp16 do not vanish (optim/loss_scale.hpp).
  // `automatic`: dynamic where parameters or gradients on the wire are fp16, else none.
  struct LossScale {
    LossScaleKind kind = LossScaleKind::automatic;
    double initial = 65536;
    double growth = 2;
    double backoff = 0.5;
    double minimum = 1;
    unsigned growth_interval = 1000;
    unsigned hysteresis = 2;
    bool operator==(const LossScale&) const = default;
  };

  // `loss_scale.kind`, with `automatic` said out loud.
  LossScaleKind resolved_loss_scale() const;

  struct Engine {
    unsigned max_live_units = 2;
    unsigned look_ahead = 2;
    unsigned max_micro_batches = 1;
    Bytes tile = 4_MiB;    // fp32 bytes of one tile: 256 KiB times a power of two
    unsigned workers = 0;  // 0: from the CPUs that this rank may use
    bool operator==(const Engine&) const = default;
  };

  struct Communicator {
    double timeout_s = 60;
    bool shared_memory = true;
    Bytes window = 4_MiB;
    bool operator==(const Communicator&) const = default;
  };

  // Bytes of the budgets that others use: the CUDA context, NCCL, the trainer itself.
  struct Outside {
    Bytes device{0};
    Bytes host{0};
    bool operator==(const Outside&) const = default;
  };

  Budgets budgets;
  Device device;
  Placement placement;
  Nvme nvme;
  Precision precision;
  Optimizer optimizer;
  LossScale loss_scale;
  Engine engine;
  Communicator communicator;
  Outside outside;

  // Reads the file. Keys that it does not name keep their defaults. Blocks: on the file system.
  // Throws Error(config) with "<path>:<line>:<column>: ..." for a file that cannot be read, is not
  // JSON, or holds an unknown key, a wrong type or an impossible value.
  static Config from_file(const std::string& path);

  // The same for text in memory; `source_name` stands for the path in messages.
  static Config from_json(std::string_view text, std::string_view source_name);

  // Throws Error(config) naming the key when a value, or a pair of values, is impossible.
  void validate() const;

  // Every key, sizes readable. Pre: validate() passes; then from_json(to_json()) is equal.
  std::string to_json() const;

  bool operator==(const Config&) const = default;
};

}  // namespace strata
