// Vectors that keep their capacity from one use to the next, so that a step allocates nothing.
// Thread: the engine thread.
#pragma once

#include <utility>
#include <vector>

namespace strata {

template <class T>
class VectorPool {
 public:
  // An empty vector.
  std::vector<T> take() {
    if (spare_.empty()) return {};
    std::vector<T> vector = std::move(spare_.back());
    spare_.pop_back();
    return vector;
  }
  void give_back(std::vector<T>&& vector) {
    vector.clear();
    spare_.push_back(std::move(vector));
  }

 private:
  std::vector<std::vector<T>> spare_;
};

}  // namespace strata
