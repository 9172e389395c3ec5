// Precautions for passing an operation to Gloo.
#pragma once

#include <mutex>

#include <signal.h>

namespace starling {

// Held while an operation is passed to Gloo. The reason is torch's flight recorder, one for all
// groups of a process. It enters a new group into its table without a lock (torch 2.11), and
// workers that are threads do so at the same time.
std::mutex& flight_recorder();

// While it lives, a write to a closed socket by this thread, and by threads that it starts, is an
// error and not a signal that ends the process: Gloo writes without MSG_NOSIGNAL. A signal of this
// kind goes to the writing thread.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE)) return;
    constexpr timespec kAtOnce{};
    while (sigtimedwait(&sigpipe_, nullptr, &kAtOnce) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t sigpipe_, before_;
};

}  // namespace starling
