// The transports without torch.
#include "fabric.h"

namespace starling {

std::vector<Kit> kits() {
  return {{"local", make_local_fabric},
          {"tcp", make_tcp_fabric},
          {"tcp_sealed", make_sealed_fabric, 2000},
          {"tcp_tls", make_tls_fabric},
          {"mapped", make_mapped_fabric, 300}};
}

}  // namespace starling
