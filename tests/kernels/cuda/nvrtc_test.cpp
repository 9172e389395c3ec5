// The update as NVRTC compiles it, for GPUs that are not here. (update_test.cpp tests the
// correctness of the compiled code.)
#include "starling/kernels/cuda/nvrtc.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include <elf.h>
#include <gmock/gmock.h>

#include "starling/kernels/cuda/program.h"
#include "tests/kernels/cuda/other_nvrtc.h"
#include "tests/refusal.h"

namespace starling::kernels::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CudaCompiler : public testing::Test {
 protected:
  void SetUp() override {
    nvrtc = Nvrtc::find();
    if (!nvrtc) GTEST_SKIP() << refusal([] { Nvrtc(); });
  }
  std::optional<Nvrtc> nvrtc;
};

Program program_of(std::string_view text) { return {.source = {"a.cu", text}, .headers = {}, .options = {}}; }

class CudaCompilerFor : public CudaCompiler, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Architecture, CudaCompilerFor, testing::Values(80, 90, 100),
                         [](const auto& info) { return "sm_" + std::to_string(info.param); });

TEST_P(CudaCompilerFor, CompilesTheUpdate) {
  const auto all = nvrtc->architectures();
  if (std::find(all.begin(), all.end(), GetParam()) == all.end())
    GTEST_SKIP() << "NVRTC " << nvrtc->version() << " has no sm_" << GetParam();
  const Compiled compiled = nvrtc->compile(update_program(), GetParam());

  Elf64_Ehdr elf{};
  ASSERT_GT(compiled.cubin.size(), sizeof elf);
  std::memcpy(&elf, compiled.cubin.data(), sizeof elf);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(elf.e_ident), SELFMAG), ELFMAG);
  EXPECT_EQ(elf.e_machine, EM_CUDA);
  for (const std::string_view entry : kUpdateEntries) {
    EXPECT_THAT(compiled.cubin, HasSubstr(".text." + std::string(entry) + '\0'));
    EXPECT_THAT(compiled.ptx, HasSubstr(".entry " + std::string(entry) + "("));
  }
  EXPECT_THAT(compiled.ptx, HasSubstr(".target sm_" + std::to_string(GetParam())));
  // The processor's bits: nothing is contracted, flushed or approximated.
  EXPECT_THAT(compiled.ptx,
              AllOf(HasSubstr("mul.rn.f32"), HasSubstr("div.rn.f32"), HasSubstr("sqrt.rn.f32")));
  EXPECT_THAT(compiled.ptx, AllOf(Not(HasSubstr("fma.")), Not(HasSubstr(".ftz")), Not(HasSubstr(".approx"))));
  // Four floats are read and written at once.
  EXPECT_THAT(compiled.ptx, AllOf(testing::ContainsRegex("ld\\.(global\\.)?v4\\.[fb]32"),
                                  testing::ContainsRegex("st\\.(global\\.)?v4\\.[fb]32")));
}

TEST_F(CudaCompiler, SaysWhatTheCompilerSaid) {
  EXPECT_THAT(refusal([&] { nvrtc->compile(program_of("__global__ void f() {\n  nothing();\n}\n"), 80); }),
              AllOf(HasSubstr("cannot compile a.cu for sm_80: "),
                    HasSubstr("a.cu(2): error: identifier \"nothing\""), Not(HasSubstr("\n"))));
}

TEST_F(CudaCompiler, NamesTheArchitecturesThatThereAre) {
  EXPECT_THAT(refusal<UsageError>([&] { nvrtc->compile(update_program(), 42); }),
              AllOf(HasSubstr("NVRTC " + nvrtc->version() + " has no architecture sm_42: allowed are sm_"),
                    HasSubstr(", sm_90")));
}

// Restores the environment after a test.
class CudaCompilerNamed : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const named = std::getenv("STARLING_NVRTC")) before_ = named;
  }
  void TearDown() override {
    before_ ? setenv("STARLING_NVRTC", before_->c_str(), 1) : unsetenv("STARLING_NVRTC");
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(CudaCompilerNamed, MustBeThereAndBeNvrtc) {
  setenv("STARLING_NVRTC", "/nowhere/libnvrtc.so", 1);
  EXPECT_THAT(refusal([] { Nvrtc::find(); }), AllOf(HasSubstr("from the file that STARLING_NVRTC names: "),
                                                    HasSubstr("/nowhere/libnvrtc.so")));
  setenv("STARLING_NVRTC", "libm.so.6", 1);
  EXPECT_EQ(refusal([] { Nvrtc(); }),
            "libm.so.6 is not an NVRTC of CUDA 12 or 13: it has no nvrtcGetErrorString");
  setenv("STARLING_NVRTC", other_nvrtc().c_str(), 1);
  EXPECT_EQ(Nvrtc().version(), "99.0");
}

}  // namespace
}  // namespace starling::kernels::cuda
