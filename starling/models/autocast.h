// torch.autocast, as long as an object lives.
#pragma once

#include <ATen/autocast_mode.h>

namespace starling {

// torch chooses the types of operations on this device as torch.autocast does.
class Autocast {
 public:
  Autocast(at::DeviceType device, at::ScalarType type)
      : device_(device),
        before_(at::autocast::is_autocast_enabled(device)),
        type_before_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_dtype(device, type);
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, before_);
    at::autocast::set_autocast_dtype(device_, type_before_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const at::DeviceType device_;
  const bool before_;
  const at::ScalarType type_before_;
};

}  // namespace starling
