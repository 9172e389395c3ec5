// Signals that the code under test has not asked for, such as those of timers and children.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include <pthread.h>
#include <signal.h>

namespace starling {

// While it lives, they come to the thread that made it, and interrupt its system calls.
class Signals {
 public:
  explicit Signals(std::chrono::microseconds pause) {
    struct sigaction nothing{};
    nothing.sa_handler = [](int) {};
    sigaction(SIGUSR1, &nothing, &before_);
    thread_ = std::thread([this, pause, to = pthread_self()] {
      for (; !stopping_; std::this_thread::sleep_for(pause)) pthread_kill(to, SIGUSR1);
    });
  }
  ~Signals() {
    stopping_ = true;
    thread_.join();
    sigaction(SIGUSR1, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  struct sigaction before_{};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace starling
