// stdout as a place that may break: a reader that has gone or a full disk must not end a step in
// its middle, and must not go unnoticed.
// Thread: one at a time.
#pragma once

#include <string_view>

namespace train_gpt {

class Output {
 public:
  // Writes and flushes. After the first failure, which stderr is told about, nothing is written.
  void write(std::string_view text);

  bool broken() const { return broken_; }

  // Whether stdout is a terminal that a line may be redrawn on. Under mpirun, which gives every
  // rank a terminal of its own, mpirun's stdout is what counts.
  static bool is_terminal();

  // Columns of the terminal.
  static unsigned width();

 private:
  bool broken_ = false;
};

}  // namespace train_gpt
