// The interface to a GPU, through the driver. (update_test.cpp tests the programs on it.
// tests/optim/device_test.cpp tests all of it together.)
#include "starling/kernels/cuda/gpu.h"

#include <gmock/gmock.h>

#include "tests/kernels/cuda/other_nvrtc.h"
#include "tests/refusal.h"

namespace starling::kernels::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Gpu, WithoutADriverSaysSoInOneLine) {
  EXPECT_THAT(
      refusal([] { Gpu(0, "/nowhere/libcuda.so.1"); }),
      AllOf(HasSubstr("CUDA's driver cannot be loaded: /nowhere/libcuda.so.1"), Not(HasSubstr("\n"))));
  EXPECT_EQ(refusal([] { Gpu(0, "libm.so.6"); }),
            "libm.so.6 is not a driver of CUDA 12 or 13: it has no cuInit");
}

TEST(Gpu, OnesThatAreNotThereAreNamed) {
  EXPECT_EQ(refusal([] { Gpu(3, other_driver()); }),
            "CUDA: GPU 3: finding it: error 101, invalid device ordinal");
}

}  // namespace
}  // namespace starling::kernels::cuda
