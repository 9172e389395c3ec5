#include "starling/transport/c10d/hand_to_gloo.h"

namespace starling {

std::mutex& flight_recorder() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace starling
