// Setting, reading and hashing states tile by tile, so that no rank ever holds a whole model.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/rng.hpp"
#include "session/guard.hpp"
#include "session/session_impl.hpp"

namespace strata {
namespace {

// Checkpoint slabs, given back through the engine.
class BorrowedSlabs {
 public:
  BorrowedSlabs(Engine& engine, std::size_t count)
      : engine_(engine), slabs_(engine.borrow_checkpoint_slabs(count)) {}
  ~BorrowedSlabs() { engine_.return_checkpoint_slabs(std::move(slabs_)); }
  BorrowedSlabs(const BorrowedSlabs&) = delete;
  BorrowedSlabs& operator=(const BorrowedSlabs&) = delete;

  std::byte* operator[](std::size_t i) const { return slabs_[i].data(); }

 private:
  Engine& engine_;
  SlabSet slabs_;
};

}  // namespace

void SessionImpl::initialize(UnitId unit, const FillFunction& fill) {
  guarded([&] {
    require_step(false, "initialize");
    check_unit(unit);
    if (simulation_ != nullptr) return;
    engine_->settle();
    initialized_[unit.value] = false;
    const StateTable& table = geometry_.table;
    const BorrowedSlabs slabs(*engine_, 2);
    auto* values = reinterpret_cast<float*>(slabs[0]);
    std::byte* converted = slabs[1];
    for (const std::uint32_t s : geometry_.layout.segments_of(unit)) {
      const Segment& segment = geometry_.layout.segments[s];
      const auto& tiles = geometry_.placement.tiles[s];
      for (std::uint32_t t = 0; t < tiles.size(); ++t) {
        const Tile& tile = tiles[t];
        std::fill_n(values, tile.count_elems, 0.0F);
        for (const TensorPart& part : tensor_parts(segment, geometry_.rank, tile.begin_elems,
                                                   tile.begin_elems + tile.count_elems)) {
          fill({unit, part.tensor.tensor, part.offset_in_tensor_elems, part.count_elems},
               {values + part.offset_in_range_elems, part.count_elems});
        }
        convert(converted, table[kParamKind].dtype, values, DType::fp32, tile.count_elems);
        engine_->store_tile(s, t, kParamKind, converted);
        if (!segment.trainable) continue;
        if (table.master != kParamKind) engine_->store_tile(s, t, table.master, slabs[0]);
        std::memset(converted, 0, tile.count_elems * sizeof(float));
        for (std::uint32_t k = kGradKind.value + 1; k < table.size(); ++k) {
          if (KindId{k} != table.master) engine_->store_tile(s, t, KindId{k}, converted);
        }
      }
    }
    for (std::uint32_t t = 0; t < model_.unit(unit).tensors.size(); ++t) {
      tensor_updates_[tensor_index(unit, TensorId{t})] = 0;
    }
    initialized_[unit.value] = true;
  });
}

void SessionImpl::initialize(UnitId unit, DType source, const FillRawFunction& fill) {
  const StateTable& table = geometry_.table;
  const DType kept = table[table.master].dtype;
  if (log_ && !told_widening_ && source != DType::fp32 && kept == DType::fp32) {
    told_widening_ = true;
    log_(LogLevel::info, fmt::format("weights of {} are widened to the fp32 {} once",
                                     name_of(source), table[table.master].name));
  }
  std::vector<std::byte> raw;
  initialize(unit, [&](const TensorSlice& slice, std::span<float> values) {
    // In pieces, so that this rank's part of a large tensor is never there twice.
    constexpr std::size_t kPiece = 1 << 16;
    for (std::size_t at = 0; at < values.size(); at += kPiece) {
      const std::span<float> piece = values.subspan(at, std::min(kPiece, values.size() - at));
      raw.resize(piece.size() * size_of(source).value);
      fill({slice.unit, slice.tensor, slice.offset_elems + at, piece.size()}, raw);
      convert(piece.data(), DType::fp32, raw.data(), source, piece.size());
    }
  });
}

KindId SessionImpl::kind_named(const std::string& name) const {
  std::string known;
  for (std::uint32_t k = 0; k < geometry_.table.size(); ++k) {
    if (geometry_.table.kinds[k].name == name) return KindId{k};
    known += (k == 0 ? "" : ", ") + geometry_.table.kinds[k].name;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("no state kind named \"{}\"; there are {}", name, known));
}

void SessionImpl::read(UnitId unit, const std::string& kind_name, const ReadFunction& visit) {
  guarded([&] {
    require_step(false, "read");
    check_unit(unit);
    const KindId kind = kind_named(kind_name);
    if (simulation_ != nullptr) {
      throw Error(ErrorCode::not_supported, "the states of a simulation have no values");
    }
    engine_->settle();
    const DType dtype = geometry_.table[kind].dtype;
    const BorrowedSlabs slabs(*engine_, 2);
    auto* values = reinterpret_cast<float*>(slabs[1]);
    for (const std::uint32_t s : geometry_.layout.segments_of(unit)) {
      const Segment& segment = geometry_.layout.segments[s];
      if (!segment.trainable && kind != kParamKind) continue;
      const auto& tiles = geometry_.placement.tiles[s];
      for (std::uint32_t t = 0; t < tiles.size(); ++t) {
        const Tile& tile = tiles[t];
        engine_->load_tile(s, t, kind, slabs[0]);
        convert(values, DType::fp32, slabs[0], dtype, tile.count_elems);
        for (const TensorPart& part : tensor_parts(segment, geometry_.rank, tile.begin_elems,
                                                   tile.begin_elems + tile.count_elems)) {
          visit({unit, part.tensor.tensor, part.offset_in_tensor_elems, part.count_elems},
                {values + part.offset_in_range_elems, part.count_elems});
        }
      }
    }
  });
}

// A sum of mixed (kind, tensor, index, value) tuples: it does not depend on who adds which part.
std::uint64_t SessionImpl::hash_kind(UnitId unit, KindId kind) {
  std::uint64_t sum = 0;
  const std::uint64_t unit_key = rng::at(rng::at(0, kind.value), unit.value);
  read(unit, geometry_.table[kind].name,
       [&](const TensorSlice& slice, std::span<const float> values) {
         const std::uint64_t key = rng::at(unit_key, slice.tensor.value);
         for (std::size_t i = 0; i < values.size(); ++i) {
           const std::uint64_t place = rng::at(key, slice.offset_elems + i);
           sum += rng::mix(place ^ std::bit_cast<std::uint32_t>(values[i]));
         }
       });
  return sum;
}

std::string SessionImpl::weights_hash(bool all_states) {
  return guarded([&] {
    require_step(false, "weights_hash");
    std::uint64_t sum = 0;
    for (std::uint32_t u = 0; u < model_.units().size(); ++u) {
      for (std::uint32_t k = 0; k < geometry_.table.size(); ++k) {
        const bool weights = KindId{k} == kParamKind || KindId{k} == geometry_.table.master;
        if (weights || (all_states && KindId{k} != kGradKind)) {
          sum += hash_kind(UnitId{u}, KindId{k});
        }
      }
    }
    if (communicator_->size() > 1) {
      const auto all = communicator_->exchange(std::as_bytes(std::span(&sum, 1)));
      sum = 0;
      for (std::size_t at = 0; at < all.size(); at += sizeof(sum)) {
        std::uint64_t theirs = 0;
        std::memcpy(&theirs, all.data() + at, sizeof(theirs));
        sum += theirs;
      }
    }
    return fmt::format("{:016x}", sum);
  });
}

}  // namespace strata
