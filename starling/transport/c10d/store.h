// The workers' store on any store of c10d: TCPStore between processes, HashStore between threads.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "starling/world/store.h"

namespace starling {

class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted = nobody) override;

  // Another store on the same keys, each behind `prefix`. Calls that wait in it block no other
  // store.
  c10::intrusive_ptr<c10d::Store> clone(const std::string& prefix) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace starling
