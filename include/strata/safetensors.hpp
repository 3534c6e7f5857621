// Weights as the tools of Hugging Face exchange them: a directory with `model.safetensors`, or with
// shards `model-00001-of-0000n.safetensors` and the index `model.safetensors.index.json`. A reader
// that checks every header before it reads anything by it, and a writer into which several ranks
// write what they hold. docs/safetensors.md tells the format and what is refused.
//
// Names of tensors are the files': what they mean for a model is the program's business.
// Memory: a fixed multiple of the headers, and a buffer of 1 MiB; never a whole tensor.
// Thread: one at a time per object. Everything here blocks on files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/types.hpp"

namespace strata::safetensors {

// A tensor of the files, as its header describes it.
struct Tensor {
  std::string name;
  std::string_view type;       // the format's word: "F32", "BF16", "I64"
  std::optional<DType> dtype;  // nothing for types that read() does not take
  std::vector<std::uint64_t> shape;
  std::uint64_t count_elems = 0;
  std::uint32_t file = 0;          // index into Reader::files()
  std::uint64_t offset_bytes = 0;  // in that file
};

// What a model needs of the files.
struct Expected {
  std::string name;
  std::vector<std::uint64_t> shape;
};

class Reader {
 public:
  // Opens the directory's single file, or the shards that its index names; links are followed, as
  // the cache of Hugging Face needs it, but names never lead out of the directory. Throws Error:
  // io (missing, unreadable), corrupt (a file breaks the format), config (an index names what
  // must not be opened, or nothing to read is there).
  static Reader open(const std::string& directory);

  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  const std::vector<Tensor>& tensors() const;  // in the order of their names
  const Tensor* find(std::string_view name) const;
  const std::vector<std::string>& files() const;  // paths
  // What is odd about the directory and yet readable, a line each.
  const std::vector<std::string>& notices() const;

  // Throws Error(config) that lists the expected tensors that are missing, or names the first of
  // another shape or of a type that cannot be read. Returns the names that nobody expects.
  std::vector<std::string> match(std::span<const Expected> expected) const;

  // Elements [offset_elems, offset_elems + values.size()), widened, which is exact. Throws Error:
  // io, corrupt when the file has changed since open(), invalid_argument for a range outside the
  // tensor or a type without DType.
  void read(const Tensor& tensor, std::uint64_t offset_elems, std::span<float> values);

 private:
  struct Impl;
  explicit Reader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "a", "b" and 7 more: names for one line of a message.
std::string listed(std::span<const std::string> names);

struct OutputTensor {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<std::uint64_t> shape;  // an extent of 0 makes a tensor without bytes
};

// A small text file beside the tensors, config.json for one.
struct Companion {
  std::string name;
  std::string text;
};

struct WriterOptions {
  Bytes most_file_bytes{
      5'000'000'000};  // of tensors in one file; a larger tensor has one for itself
  std::vector<Companion> companions = {};
};

// Writes a directory of tensors, by one process or several that hold parts of them. All make a
// Writer of the same arguments; then
//   the first one: create()                    (the others wait until it has returned)
//   all:           write() ..., flush()        (any ranges, any order, each element once)
//   the first one: commit()                    (once all have flushed)
// Files have temporary names, ending in ".partial", until commit() renames them, the index last: no
// reader meets half a file. A Writer that created and did not commit removes what it made.
// The processes see one file system.
class Writer {
 public:
  // Throws Error(invalid_argument): no tensor, a name twice, a size beyond 2^63 bytes, or a
  // companion whose name is not one of a file in the directory.
  Writer(std::string directory, std::vector<OutputTensor> tensors, WriterOptions options = {});
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) = delete;
  ~Writer();

  // Throws Error(config) when create() would refuse `directory` as it is: it holds a model or the
  // rest of an export, cannot be made or cannot be written to. Touches nothing.
  static void check_destination(const std::string& directory);

  // Makes the directory if only its last name is missing, the files with their headers, and room
  // for all of their bytes. Throws Error: config (see above), no_space, io.
  void create();

  // Elements [offset_elems, ...) of the tensor with this index, rounded to nearest even. Throws
  // Error: config for a finite value that the type of the file cannot hold, no_space, io,
  // invalid_argument for a range outside the tensor.
  void write(std::size_t tensor, std::uint64_t offset_elems, std::span<const float> values);

  // Returns when all that was written is on the disk. Throws Error: no_space, io.
  void flush();

  // Elements that this Writer has written, for a comparison with count_elems(): what nobody wrote
  // would be zero.
  std::uint64_t written_elems() const;
  std::uint64_t count_elems() const;

  // Pre: create() on this Writer. Throws Error: io; nothing has a final name then.
  void commit();

  // Final names: the companions, the files of tensors, the index if there is one.
  std::vector<std::string> file_names() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::safetensors
