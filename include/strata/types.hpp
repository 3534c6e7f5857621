// Strong types for the quantities that Strata's interfaces pass around: identifiers, byte counts,
// element types and tiers. Index, count and bytes are different things and do not convert into
// each other silently. Everything here is a value; no ownership, any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace strata {

// An index into one table of things; `Tag` names the table.
template <class Tag>
struct Id {
  std::uint32_t value = 0;

  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t index) : value(index) {}
  constexpr auto operator<=>(const Id&) const = default;
};

using UnitId = Id<struct UnitTag>;      // a unit of the model, in the order of Model::add_unit
using TensorId = Id<struct TensorTag>;  // a tensor inside its unit, in the order of declaration
using Rank = Id<struct RankTag>;        // a rank of one communicator, 0 .. size - 1
using StreamId = Id<struct StreamTag>;  // a stream of one device
using FileId = Id<struct FileTag>;      // an open file of one BlockIo

// A number of bytes.
struct Bytes {
  std::uint64_t value = 0;

  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t count) : value(count) {}
  constexpr auto operator<=>(const Bytes&) const = default;

  constexpr Bytes& operator+=(Bytes other) {
    value += other.value;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    value -= other.value;
    return *this;
  }
};

constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes{a.value + b.value}; }
constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes{a.value - b.value}; }
constexpr Bytes operator*(Bytes a, std::uint64_t n) { return Bytes{a.value * n}; }
constexpr Bytes operator*(std::uint64_t n, Bytes a) { return Bytes{a.value * n}; }
constexpr Bytes operator/(Bytes a, std::uint64_t n) { return Bytes{a.value / n}; }
constexpr std::uint64_t operator/(Bytes a, Bytes b) { return a.value / b.value; }

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr Bytes round_up(Bytes size, Bytes multiple) {
  return Bytes{round_up(size.value, multiple.value)};
}

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes{n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes{n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes{n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes{n << 30}; }
}  // namespace literals

// The type of one stored element. fp32 is IEEE binary32, fp16 IEEE binary16, bf16 the upper half
// of a binary32; conversions round to nearest even.
enum class DType : std::uint8_t { fp32, bf16, fp16 };

constexpr Bytes size_of(DType dtype) { return dtype == DType::fp32 ? Bytes{4} : Bytes{2}; }
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
  }
  return "?";
}

// Where bytes rest: GPU memory (or the CPU device's arena), pinned host RAM, files.
enum class Tier : std::uint8_t { device, host, nvme };
inline constexpr std::size_t kTierCount = 3;

constexpr std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device: return "device";
    case Tier::host: return "host";
    case Tier::nvme: return "nvme";
  }
  return "?";
}

}  // namespace strata

template <class Tag>
struct std::hash<strata::Id<Tag>> {
  std::size_t operator()(strata::Id<Tag> id) const noexcept { return id.value; }
};
