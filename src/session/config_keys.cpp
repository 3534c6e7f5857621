#include "session/config_keys.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace strata::config {
namespace {

using namespace std::string_view_literals;

constexpr double bytes(Bytes size) { return static_cast<double>(size.value); }

// Far above any machine, and far enough below 2^64 that budgets of many ranks can be added.
constexpr Range kAnySize = {0, bytes(Bytes{1ULL << 50})};
// The largest betas below 1 that stay below 1 when rounded to float32 with digits to spare.
constexpr Range kBeta = {0, 0.999999};

constexpr std::array kSections = {
    Section{"budgets",
            "Hard limits per tier. Nothing is allocated beyond them, and opening a "
            "session proves that they suffice."},
    Section{"device",
            "What gathers, computes and reduces. Of several visible GPUs (CUDA_VISIBLE_DEVICES) a "
            "rank takes the one of its number on its host."},
    Section{"placement",
            "Where each kind of state rests between uses: a tier, or fractions of "
            "every shard over the tiers. Placement never changes the result."},
    Section{"nvme", "The files that hold the `nvme` tier."},
    Section{"precision",
            "Types of what is gathered, reduced and kept. The arithmetic of sums and updates is "
            "fp32 whatever they are."},
    Section{"optimizer", "The update rule and the verdict on gradients."},
    Section{"loss_scale",
            "The factor on the loss that keeps fp16 gradients from vanishing. The trainer "
            "multiplies by `Session::loss_scale()`; the update divides it out."},
    Section{"engine", "How much is in flight."},
    Section{"communicator", "How ranks exchange data."},
    Section{"outside", "Bytes of the budgets that Strata does not manage but must leave free."},
};

bool may_update_in_backward(const Config& config) {
  const bool dynamic = config.resolved_loss_scale() == Config::LossScaleKind::dynamic;
  const Config::Optimizer& optimizer = config.optimizer;
  return !optimizer.in_backward ||
         (optimizer.clip_norm == 0 && !dynamic && optimizer.nonfinite == Config::Nonfinite::abort);
}

bool is_tile(Bytes size) {
  constexpr Bytes kLeast = 256_KiB;
  return size.value % kLeast.value == 0 && std::has_single_bit(size / kLeast);
}

bool is_run_name(std::string_view name) {
  constexpr auto kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"sv;
  return !name.empty() && name.size() <= 128 && name != "." && name != ".." &&
         name.find_first_not_of(kAllowed) == std::string_view::npos;
}

bool is_optimizer(std::string_view name) {
  constexpr std::array kNames = {"adamw"sv, "adam"sv, "sgd"sv, "adagrad"sv, "lion"sv};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool is_sgd(const Config& config) { return config.optimizer.name == "sgd"; }

bool is_path(std::string_view path) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  return !path.empty() && std::none_of(path.begin(), path.end(), is_control);
}

bool are_directories(const std::vector<std::string>& paths) {
  auto sorted = paths;
  std::sort(sorted.begin(), sorted.end());
  return std::all_of(paths.begin(), paths.end(), is_path) &&
         std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

constexpr std::array kKeys = {
    Key{.path = "budgets.device",
        .field = [](Config& c) -> Field { return &c.budgets.device; },
        .range = kAnySize,
        .doc = "Device memory for everything: states at rest, gathered units, gradients, scratch."},
    Key{.path = "budgets.host",
        .field = [](Config& c) -> Field { return &c.budgets.host; },
        .range = kAnySize,
        .doc = "Pinned host memory: states at rest, staging slabs, gradients before the verdict."},
    Key{.path = "budgets.nvme",
        .field = [](Config& c) -> Field { return &c.budgets.nvme; },
        .range = kAnySize,
        .doc = "Bytes of files in all of `nvme.directories` together."},
    Key{.path = "budgets.scope",
        .field = [](Config& c) -> Field { return &c.budgets.scope; },
        .doc = "Whether the budgets are for each rank, or for all ranks of one node together."},
    Key{.path = "device.kind",
        .field = [](Config& c) -> Field { return &c.device.kind; },
        .doc = "`auto` takes a GPU where this build has CUDA and a GPU is visible, and the CPU "
               "elsewhere."},
    Key{.path = "device.allocator",
        .field = [](Config& c) -> Field { return &c.device.allocator; },
        .doc = "Where the GPU's arena comes from: cudaMalloc, or the stream-ordered pool that "
               "cudaMallocAsync serves others from."},
    Key{.path = "placement.param",
        .field = [](Config& c) -> Field { return &c.placement.param; },
        .doc = "Homes of the parameters in `precision.param`, from which units are gathered."},
    Key{.path = "placement.grad",
        .field = [](Config& c) -> Field { return &c.placement.grad; },
        .rule = {"(or \"auto\")", [](const Config&) { return true; }},
        .doc = "Homes of the reduced gradients between backward and update. `auto`: as the budgets "
               "allow; on the device where that saves crossings, then on the host, and in files "
               "only what the host cannot hold until the verdict."},
    Key{.path = "placement.optimizer",
        .field = [](Config& c) -> Field { return &c.placement.optimizer; },
        .doc = "Homes of the masters and the moments."},
    Key{.path = "placement.activation",
        .field = [](Config& c) -> Field { return &c.placement.activation; },
        .doc = "Homes of the activations that a trainer stashes between forward and backward "
               "(Session::stash), by number: those stashed first rest on nvme, the last, which "
               "backward needs first, on the device."},
    Key{.path = "nvme.directories",
        .field = [](Config& c) -> Field { return &c.nvme.directories; },
        .rule = {"of different, non-empty paths without control characters",
                 [](const Config& c) { return are_directories(c.nvme.directories); }},
        .doc = "Existing directories, one per disk; relative ones start at the current directory."},
    Key{.path = "nvme.run",
        .field = [](Config& c) -> Field { return &c.nvme.run; },
        .rule = {"of 1 to 128 of A-Z a-z 0-9 . _ - other than \".\" and \"..\"",
                 [](const Config& c) { return is_run_name(c.nvme.run); }},
        .doc = "Name of the run's folder in each directory; two live runs need two names."},
    Key{.path = "nvme.allow_tmpfs",
        .field = [](Config& c) -> Field { return &c.nvme.allow_tmpfs; },
        .doc = "Accept directories on tmpfs, whose files are RAM outside every budget (tests)."},
    Key{.path = "nvme.weights",
        .field = [](Config& c) -> Field { return &c.nvme.weights; },
        .range = {0, 1e9, true},
        .doc = "How much of the states each directory takes, as it is as fast; `strata bench io` "
               "prints them. Empty: equal shares."},
    Key{.path = "nvme.backend",
        .field = [](Config& c) -> Field { return &c.nvme.backend; },
        .doc = "What carries reads and writes; `auto` takes io_uring where the kernel offers it, "
               "and POSIX threads elsewhere."},
    Key{.path = "nvme.queue_depth",
        .field = [](Config& c) -> Field { return &c.nvme.queue_depth; },
        .range = {1, 256},
        .doc = "Reads and writes that the kernel has at once; the most urgent of the others is "
               "next."},
    Key{.path = "nvme.write_depth",
        .field = [](Config& c) -> Field { return &c.nvme.write_depth; },
        .range = {0, 256},
        .doc = "How many of these may be writes, so that a read finds the device with room. 0: "
               "half of them."},
    Key{.path = "nvme.verify",
        .field = [](Config& c) -> Field { return &c.nvme.verify; },
        .doc = "Whether every tile that is read is checked against the checksum (XXH3) of what was "
               "written."},
    Key{.path = "nvme.spare_slots",
        .field = [](Config& c) -> Field { return &c.nvme.spare_slots; },
        .range = {0, 65536},
        .doc =
            "Spare slots, for each size of tile, in which a write stands beside the version that "
            "it replaces. 0: tiles are overwritten in place."},
    Key{.path = "nvme.retry_s",
        .field = [](Config& c) -> Field { return &c.nvme.retry_s; },
        .range = {0, 3600},
        .doc = "Seconds for which a failed read or write is tried again before the session stops."},
    Key{.path = "nvme.timeout_s",
        .field = [](Config& c) -> Field { return &c.nvme.timeout_s; },
        .range = {0.001, 86400},
        .doc = "Seconds without any answer of the disk after which the session stops."},
    Key{.path = "precision.param",
        .field = [](Config& c) -> Field { return &c.precision.param; },
        .doc = "Type of the gathered parameters and of the gradients of one micro-batch."},
    Key{.path = "precision.reduce",
        .field = [](Config& c) -> Field { return &c.precision.reduce; },
        .default_from = "precision.param",
        .doc = "Type of gradients in the trainer's buffer and on the wire between ranks."},
    Key{.path = "precision.master",
        .field = [](Config& c) -> Field { return &c.precision.master; },
        .doc = "The weights that the optimizer updates: fp32 beside 16-bit parameters, or the "
               "parameters themselves, which saves 4 bytes for each and loses small updates."},
    Key{.path = "precision.moments",
        .field = [](Config& c) -> Field { return &c.precision.moments; },
        .doc = "Type of the optimizer's moments at rest. bf16 halves them, and second moments "
               "then stop following gradients when 1 - beta2 is below 1/256."},
    Key{.path = "optimizer.name",
        .field = [](Config& c) -> Field { return &c.optimizer.name; },
        .rule = {"that names an optimizer: \"adamw\", \"adam\", \"sgd\", \"adagrad\" or \"lion\"",
                 [](const Config& c) { return is_optimizer(c.optimizer.name); }},
        .doc = "The update rule, as PyTorch defines it; lion as its authors do."},
    Key{.path = "optimizer.learning_rate",
        .field = [](Config& c) -> Field { return &c.optimizer.learning_rate; },
        .doc = "Rate of the steps whose program names none in `begin_step`."},
    Key{.path = "optimizer.beta1",
        .field = [](Config& c) -> Field { return &c.optimizer.beta1; },
        .range = kBeta,
        .doc = "Decay of the first moment per step (adamw, adam); weight of it in lion's step."},
    Key{.path = "optimizer.beta2",
        .field = [](Config& c) -> Field { return &c.optimizer.beta2; },
        .range = kBeta,
        .doc = "Decay of the second moment per step (adamw, adam), or of lion's only one."},
    Key{.path = "optimizer.epsilon",
        .field = [](Config& c) -> Field { return &c.optimizer.epsilon; },
        .range = {1e-30, 1},
        .doc = "Added to the root of the second moment; keeps the division finite in float32 "
               "(adamw, adam, adagrad)."},
    Key{.path = "optimizer.weight_decay",
        .field = [](Config& c) -> Field { return &c.optimizer.weight_decay; },
        .doc = "adamw, lion: a step multiplies weights by 1 - learning rate x this. The others: "
               "this x weight is added to the gradient (L2), and a file that does not name it "
               "gets 0."},
    Key{.path = "optimizer.momentum",
        .field = [](Config& c) -> Field { return &c.optimizer.momentum; },
        .range = kBeta,
        .doc = "sgd: decay of the momentum per step. 0: none, and no state for it."},
    Key{.path = "optimizer.nesterov",
        .field = [](Config& c) -> Field { return &c.optimizer.nesterov; },
        .doc = "sgd: Nesterov's momentum."},
    Key{.path = "optimizer.clip_norm",
        .field = [](Config& c) -> Field { return &c.optimizer.clip_norm; },
        .doc = "Largest global gradient norm; larger ones are scaled down to it. 0: no clipping."},
    Key{.path = "optimizer.nonfinite",
        .field = [](Config& c) -> Field { return &c.optimizer.nonfinite; },
        .doc = "A step with an infinite or NaN gradient: leave all states as they are, or fail. A "
               "dynamic loss scale skips in either case, and fails at its minimum."},
    Key{.path = "optimizer.in_backward",
        .field = [](Config& c) -> Field { return &c.optimizer.in_backward; },
        .rule =
            {"that is true only with optimizer.clip_norm 0, optimizer.nonfinite \"abort\" and no "
             "dynamic loss scale",
             [](const Config& c) { return may_update_in_backward(c); }},
        .doc =
            "Update a unit as soon as its last gradient of a step is reduced, beside the rest of "
            "backward. Nothing waits for the norm then, so that clip_norm must be 0, and a "
            "non-finite gradient is found too late to keep the states: nonfinite must be "
            "\"abort\", and the run goes back to a checkpoint. A unit cannot be gathered "
            "between its last reduce() and end()."},
    Key{.path = "loss_scale.kind",
        .field = [](Config& c) -> Field { return &c.loss_scale.kind; },
        .doc = "`auto` is `dynamic` where `precision.param` or `precision.reduce` is fp16, and "
               "`none` elsewhere."},
    Key{.path = "loss_scale.initial",
        .field = [](Config& c) -> Field { return &c.loss_scale.initial; },
        .range = {0x1p-64, 0x1p64},
        .doc = "The static scale, or where the dynamic one begins."},
    Key{.path = "loss_scale.growth",
        .field = [](Config& c) -> Field { return &c.loss_scale.growth; },
        .range = {1, 65536, true},
        .doc = "Factor by which the dynamic scale grows."},
    Key{.path = "loss_scale.growth_interval",
        .field = [](Config& c) -> Field { return &c.loss_scale.growth_interval; },
        .range = {1, 1e9},
        .doc = "Steps in a row with finite gradients after which it grows."},
    Key{.path = "loss_scale.backoff",
        .field = [](Config& c) -> Field { return &c.loss_scale.backoff; },
        .range = {1e-6, 0.999999},
        .doc = "Factor by which it shrinks after a skipped step."},
    Key{.path = "loss_scale.hysteresis",
        .field = [](Config& c) -> Field { return &c.loss_scale.hysteresis; },
        .range = {1, 1000},
        .doc = "Skipped steps, since it last grew, from which on each one shrinks it."},
    Key{.path = "loss_scale.minimum",
        .field = [](Config& c) -> Field { return &c.loss_scale.minimum; },
        .range = {0x1p-64, 0x1p64},
        .doc = "It does not shrink below this: a step that would have to is an error."},
    Key{.path = "engine.max_live_units",
        .field = [](Config& c) -> Field { return &c.engine.max_live_units; },
        .range = {1, 1024},
        .doc = "Gathered units that the program may hold at once."},
    Key{.path = "engine.look_ahead",
        .field = [](Config& c) -> Field { return &c.engine.look_ahead; },
        .range = {0, 1024},
        .doc =
            "Gather slots beside those of max_live_units, as far as half of what else is free of "
            "the device's budget holds them. Once the calls of a pattern are known, gathers run "
            "ahead of the program in every slot that it does not hold, and updates run beside "
            "the next forward. 0: nothing runs ahead, and end() waits for the updates."},
    Key{.path = "engine.max_micro_batches",
        .field = [](Config& c) -> Field { return &c.engine.max_micro_batches; },
        .range = {1, 65536},
        .doc = "Largest number of micro-batches of a step; above 1, gradients accumulate in fp32."},
    Key{.path = "engine.tile",
        .field = [](Config& c) -> Field { return &c.engine.tile; },
        .range = {bytes(256_KiB), bytes(1_GiB)},
        .rule = {"that is 256 KiB times a power of two",
                 [](const Config& c) { return is_tile(c.engine.tile); }},
        .doc =
            "fp32 bytes of one tile: the piece of a shard that one read, write and update take."},
    Key{.path = "engine.workers",
        .field = [](Config& c) -> Field { return &c.engine.workers; },
        .range = {0, 256},
        .doc = "Threads for checksums, casts and updates on the host. 0: one for each core of this "
               "rank's part of the CPUs less one, at most 16. The ranks of a host divide its CPUs, "
               "and workers stay on their rank's part."},
    Key{.path = "communicator.timeout_s",
        .field = [](Config& c) -> Field { return &c.communicator.timeout_s; },
        .range = {0, 86400, true},
        .doc = "Seconds that a rank waits for a peer before it reports the peer as lost."},
    Key{.path = "communicator.shared_memory",
        .field = [](Config& c) -> Field { return &c.communicator.shared_memory; },
        .doc = "Let ranks of one node exchange through shared memory."},
    Key{.path = "communicator.window",
        .field = [](Config& c) -> Field { return &c.communicator.window; },
        .range = {bytes(4_KiB), bytes(1_GiB)},
        .doc = "Shared memory per rank and buffer for that exchange."},
    Key{.path = "outside.device",
        .field = [](Config& c) -> Field { return &c.outside.device; },
        .range = kAnySize,
        .doc = "Part of `budgets.device` for the CUDA context, NCCL and the trainer itself."},
    Key{.path = "outside.host",
        .field = [](Config& c) -> Field { return &c.outside.host; },
        .range = kAnySize,
        .doc = "Part of `budgets.host` for pinned memory of the trainer itself."},
};

double TierFractions::*member_of(Tier tier) {
  switch (tier) {
    case Tier::device: return &TierFractions::device;
    case Tier::host: return &TierFractions::host;
    case Tier::nvme: break;
  }
  return &TierFractions::nvme;
}

// Whether no state rests on `tier`.
bool is_unused(const Config::Placement& placement, Tier tier) {
  const auto member = member_of(tier);
  return placement.param.*member == 0 && placement.grad.*member == 0 &&
         placement.optimizer.*member == 0 &&
         (tier == Tier::device || placement.activation.*member == 0);
}

constexpr std::array kRelations = {
    Relation{"placement.param", "name tiers: only \"placement.grad\" may be \"auto\"",
             [](const Config& c) { return !c.placement.param.automatic; }},
    Relation{"placement.optimizer", "name tiers: only \"placement.grad\" may be \"auto\"",
             [](const Config& c) { return !c.placement.optimizer.automatic; }},
    Relation{"placement.activation", "name tiers: only \"placement.grad\" may be \"auto\"",
             [](const Config& c) { return !c.placement.activation.automatic; }},
    Relation{"budgets.device", "be above 0 when a placement uses \"device\"",
             [](const Config& c) {
               return c.budgets.device > 0_B || is_unused(c.placement, Tier::device);
             }},
    Relation{
        "budgets.host", "be above 0 when a placement uses \"host\"",
        [](const Config& c) { return c.budgets.host > 0_B || is_unused(c.placement, Tier::host); }},
    Relation{
        "budgets.nvme", "be above 0 when a placement uses \"nvme\"",
        [](const Config& c) { return c.budgets.nvme > 0_B || is_unused(c.placement, Tier::nvme); }},
    Relation{"nvme.directories", "name a directory when a placement uses \"nvme\"",
             [](const Config& c) {
               return !c.nvme.directories.empty() || is_unused(c.placement, Tier::nvme);
             }},
    Relation{"nvme.weights", "be empty or have one number for each of \"nvme.directories\"",
             [](const Config& c) {
               return c.nvme.weights.empty() || c.nvme.weights.size() == c.nvme.directories.size();
             }},
    Relation{"nvme.write_depth", "not be above \"nvme.queue_depth\"",
             [](const Config& c) { return c.nvme.write_depth <= c.nvme.queue_depth; }},
    Relation{"precision.moments", "be \"fp32\" or \"bf16\": fp16 cannot hold second moments",
             [](const Config& c) { return c.precision.moments != DType::fp16; }},
    Relation{"precision.moments",
             "be \"fp32\" when \"optimizer.name\" is \"adagrad\", whose sums bf16 would stop",
             [](const Config& c) {
               return c.optimizer.name != "adagrad" || c.precision.moments == DType::fp32;
             }},
    Relation{"optimizer.momentum", "be 0 when \"optimizer.name\" is not \"sgd\"",
             [](const Config& c) { return c.optimizer.momentum == 0 || is_sgd(c); }},
    Relation{"optimizer.nesterov",
             "be false when \"optimizer.name\" is not \"sgd\" or \"optimizer.momentum\" is 0",
             [](const Config& c) {
               return !c.optimizer.nesterov || (is_sgd(c) && c.optimizer.momentum > 0);
             }},
    Relation{"loss_scale.minimum", "not be above \"loss_scale.initial\"",
             [](const Config& c) { return c.loss_scale.minimum <= c.loss_scale.initial; }},
    Relation{"outside.device", "not be above \"budgets.device\"",
             [](const Config& c) { return c.outside.device <= c.budgets.device; }},
    Relation{"outside.host", "not be above \"budgets.host\"",
             [](const Config& c) { return c.outside.host <= c.budgets.host; }},
};

constexpr std::array kDTypeWords = {Word<DType>{"bf16", DType::bf16},
                                    Word<DType>{"fp16", DType::fp16},
                                    Word<DType>{"fp32", DType::fp32}};
constexpr std::array kScopeWords = {
    Word<Config::BudgetScope>{"per_rank", Config::BudgetScope::per_rank},
    Word<Config::BudgetScope>{"per_node", Config::BudgetScope::per_node}};
constexpr std::array kNonfiniteWords = {Word<Config::Nonfinite>{"skip", Config::Nonfinite::skip},
                                        Word<Config::Nonfinite>{"abort", Config::Nonfinite::abort}};
constexpr std::array kBackendWords = {
    Word<Config::IoBackend>{"auto", Config::IoBackend::automatic},
    Word<Config::IoBackend>{"io_uring", Config::IoBackend::io_uring},
    Word<Config::IoBackend>{"posix", Config::IoBackend::posix}};
constexpr std::array kVerifyWords = {Word<Config::Verify>{"always", Config::Verify::always},
                                     Word<Config::Verify>{"off", Config::Verify::off}};
constexpr std::array kDeviceWords = {
    Word<Config::DeviceKind>{"auto", Config::DeviceKind::automatic},
    Word<Config::DeviceKind>{"cpu", Config::DeviceKind::cpu},
    Word<Config::DeviceKind>{"cuda", Config::DeviceKind::cuda}};
constexpr std::array kAllocatorWords = {
    Word<Config::DeviceAllocator>{"malloc", Config::DeviceAllocator::malloc},
    Word<Config::DeviceAllocator>{"pool", Config::DeviceAllocator::pool}};
constexpr std::array kMasterWords = {
    Word<Config::Masters>{"fp32", Config::Masters::fp32},
    Word<Config::Masters>{"param", Config::Masters::same_as_param}};
constexpr std::array kLossScaleWords = {
    Word<Config::LossScaleKind>{"auto", Config::LossScaleKind::automatic},
    Word<Config::LossScaleKind>{"none", Config::LossScaleKind::none},
    Word<Config::LossScaleKind>{"static", Config::LossScaleKind::fixed},
    Word<Config::LossScaleKind>{"dynamic", Config::LossScaleKind::dynamic}};
constexpr std::array kTierWords = {Word<Tier>{name_of(Tier::device), Tier::device},
                                   Word<Tier>{name_of(Tier::host), Tier::host},
                                   Word<Tier>{name_of(Tier::nvme), Tier::nvme}};

}  // namespace

std::span<const Section> sections() { return kSections; }
std::span<const Key> keys() { return kKeys; }
std::span<const Relation> relations() { return kRelations; }

std::span<const Word<DType>> words_of(const DType*) { return kDTypeWords; }
std::span<const Word<Config::BudgetScope>> words_of(const Config::BudgetScope*) {
  return kScopeWords;
}
std::span<const Word<Config::Nonfinite>> words_of(const Config::Nonfinite*) {
  return kNonfiniteWords;
}
std::span<const Word<Config::IoBackend>> words_of(const Config::IoBackend*) {
  return kBackendWords;
}
std::span<const Word<Config::Verify>> words_of(const Config::Verify*) { return kVerifyWords; }
std::span<const Word<Config::DeviceKind>> words_of(const Config::DeviceKind*) {
  return kDeviceWords;
}
std::span<const Word<Config::DeviceAllocator>> words_of(const Config::DeviceAllocator*) {
  return kAllocatorWords;
}
std::span<const Word<Config::Masters>> words_of(const Config::Masters*) { return kMasterWords; }
std::span<const Word<Config::LossScaleKind>> words_of(const Config::LossScaleKind*) {
  return kLossScaleWords;
}
std::span<const Word<Tier>> words_of(const TierFractions*) { return kTierWords; }

double& fraction_of(TierFractions& fractions, Tier tier) { return fractions.*member_of(tier); }

bool is_section(std::string_view path) {
  const auto named = [path](const Section& section) { return section.name == path; };
  return std::any_of(kSections.begin(), kSections.end(), named);
}

const Key* find_key(std::string_view path) {
  const auto named = [path](const Key& key) { return key.path == path; };
  const auto* found = std::find_if(kKeys.begin(), kKeys.end(), named);
  return found == kKeys.end() ? nullptr : found;
}

std::optional<Field> field_at(Config& config, std::string_view path) {
  if (const Key* key = find_key(path)) return key->field(config);
  const std::size_t dot = path.rfind('.');
  const Key* parent = dot == path.npos ? nullptr : find_key(path.substr(0, dot));
  if (parent == nullptr) return std::nullopt;
  const Field field = parent->field(config);
  const auto* fractions = std::get_if<TierFractions*>(&field);
  if (fractions == nullptr) return std::nullopt;
  for (const auto& tier : kTierWords) {
    if (tier.text == path.substr(dot + 1)) return &fraction_of(**fractions, tier.value);
  }
  return std::nullopt;
}

std::string join_path(std::string_view parent, std::string_view name) {
  std::string path(parent);
  if (!parent.empty()) path += '.';
  return path.append(name);
}

std::vector<std::string_view> names_below(std::string_view path) {
  std::vector<std::string_view> names;
  if (path.empty()) {
    for (const Section& section : kSections) names.push_back(section.name);
  } else if (find_key(path) != nullptr) {
    for (const auto& tier : kTierWords) names.push_back(tier.text);
  }
  for (const Key& key : kKeys) {
    const std::size_t dot = key.path.find('.');
    if (key.path.substr(0, dot) == path) names.push_back(key.path.substr(dot + 1));
  }
  return names;
}

std::vector<std::string> valid_paths() {
  std::vector<std::string> paths;
  for (const Section& section : kSections) paths.emplace_back(section.name);
  Config scratch;
  for (const Key& key : kKeys) {
    paths.emplace_back(key.path);
    if (!std::holds_alternative<TierFractions*>(key.field(scratch))) continue;
    for (const auto& tier : kTierWords) {
      paths.push_back(join_path(key.path, tier.text));
    }
  }
  return paths;
}

}  // namespace strata::config
