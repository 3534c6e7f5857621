// Training text from one file: bytes as tokens, or token ids stored as little-endian u16 or u32.
// Sequences are drawn by a pure function of (seed, step, micro-batch, rank, row); the file is read
// with pread, a sequence at a time, so that its size does not matter.
//
// Errors: strata::Error with one line that names the file.
// Thread: one at a time. read_batch() blocks on the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace train_gpt {

enum class TokenFormat { bytes, u16, u32 };

enum class Split { train, eval };

// Which batch; two batches that differ in any field are drawn independently.
struct BatchId {
  std::uint64_t step = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t rank = 0;
};

class Dataset {
 public:
  // Throws Error: io when the file is missing, unreadable or not a regular file; config when it
  // is empty, its size is no multiple of the token width, or it is shorter than one sequence + 1.
  Dataset(const std::string& path, TokenFormat format, std::uint32_t vocab, std::uint32_t sequence);
  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  std::uint64_t count_tokens() const { return count_tokens_; }

  // The last 5 % of the file are for evaluation when both parts hold a sequence + 1; otherwise
  // both splits are the whole file.
  bool has_eval_split() const { return eval_begin_ != 0; }

  // Fills (rows, sequence) input tokens and, shifted by one, their targets. Throws Error: config
  // for a token id that is not below the vocabulary size, io when a read fails or the file shrank.
  // Pre: inputs.size() == targets.size(), a multiple of the sequence length.
  void read_batch(std::uint64_t seed, Split split, const BatchId& id,
                  std::span<std::uint32_t> inputs, std::span<std::uint32_t> targets);

 private:
  std::uint64_t draw_start(std::uint64_t seed, Split split, const BatchId& id,
                           std::uint64_t row) const;
  void read_sequence(std::uint64_t start_token);
  std::uint32_t token(std::uint64_t index, std::uint64_t start_token) const;

  std::string path_;
  std::uint64_t width_bytes_;
  std::uint32_t vocab_;
  std::uint64_t sequence_;
  int descriptor_ = -1;
  std::uint64_t count_tokens_ = 0;
  std::uint64_t eval_begin_ = 0;  // in tokens; 0 when there is no separate part
  std::vector<std::byte> raw_;    // one sequence + 1, as stored
};

}  // namespace train_gpt
