// In place of the other sources of this folder, in a build without CUDA.
#include "starling/core/error.h"
#include "starling/optim/cuda/cuda.h"

namespace starling {

std::string find_cuda() { return "this Starling was built without CUDA (STARLING_CUDA=OFF)"; }

std::shared_ptr<Device> cuda_device(at::Device) { throw Error(find_cuda()); }

}  // namespace starling
