// A first-in first-out queue of objects that lie elsewhere and link themselves by a member `next`:
// queueing allocates nothing. An object is in at most one queue and outlives its stay.
// Thread: one at a time.
#pragma once

#include <utility>

namespace strata {

template <class T>
class IntrusiveQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  // Pre: not empty.
  T& front() const { return *first_; }

  void push(T& object) {
    object.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &object;
    last_ = &object;
  }
  // Pre: not empty.
  T& pop() {
    T* const object = first_;
    first_ = std::exchange(object->next, nullptr);
    return *object;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;  // while not empty
};

}  // namespace strata
