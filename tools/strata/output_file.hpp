// A result file that is opened before the work whose result it will hold, so that a path that
// cannot be written shows at once. What stood in it stays until write(); a file that was made for
// nothing is removed again.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"

namespace strata::tool {

class OutputFile {
 public:
  // Throws Error(io).
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Replaces the content. Throws Error(io).
  void write(std::string_view content);

 private:
  [[noreturn]] void fail() const;

  const std::string path_;
  Descriptor descriptor_;
  bool created_ = false;
  bool written_ = false;
};

// Writes to a stream that is open already, standard output for one. Throws Error(io).
void print(std::FILE* out, std::string_view text);

}  // namespace strata::tool
