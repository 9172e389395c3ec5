// How C++ lives in Python's process: what is forked with it, and Ctrl-C.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

namespace starling {

namespace py = pybind11;

// Objects with threads and connections belong to the process that made them. A forked process has
// neither the threads, to wait for, nor the right to use the connections. There the objects are
// left as they are, and never destroyed.
class Maker {
 public:
  bool is_this_process() const { return process_ == getpid(); }
  template <class T>
  static std::shared_ptr<T> keeps(std::shared_ptr<T> it) {
    T* const there = it.get();
    return {there, [maker = Maker(), it = std::move(it)](T*) mutable {
              if (!maker.is_this_process()) new std::shared_ptr<T>(std::move(it));
            }};
  }

 private:
  pid_t process_ = getpid();
};

// Ctrl-C while C++ waits: the signal's handler is called in the middle of the wait, as Python calls
// it between two lines. Its exception ends the wait, and is raised once the call has ended.
class Interrupt {
 public:
  // World::interrupted, in the thread that waits: Python calls handlers in its main thread only.
  // Outside ends() it throws the raised exception. This happens in backward(), where all-reduce
  // waits, and autograd passes it to its caller.
  static bool came() {
    if (raised_) return true;
    const py::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return false;
    if (!listens_) throw py::error_already_set();
    raised_.emplace();
    return true;
  }
  // Runs a call that may wait, without the interpreter's lock.
  template <class Call>
  static void ends(const Call& call) {
    std::exception_ptr failure;
    const bool before = std::exchange(listens_, true);  // a call within a call: Python's hooks
    {
      const py::gil_scoped_release unlock;
      try {
        call();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    listens_ = before;
    if (!before) {
      // Perhaps the reason of the failure.
      if (auto raised = std::exchange(raised_, std::nullopt)) throw *raised;
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  inline static thread_local bool listens_ = false;
  inline static thread_local std::optional<py::error_already_set> raised_;
};

}  // namespace starling
