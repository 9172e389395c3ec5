// The cache of compiled programs, with a compiler that counts its calls (other_nvrtc.cpp).
#include "starling/kernels/cuda/cubin.h"

#include <cstdlib>
#include <set>

#include <gmock/gmock.h>

#include "tests/folder.h"
#include "tests/kernels/cuda/other_nvrtc.h"
#include "tests/refusal.h"

namespace starling::kernels::cuda {
namespace {

namespace fs = std::filesystem;

class CubinCache : public testing::Test {
 protected:
  void TearDown() override { unsetenv("OTHER_NVRTC_MINOR"); }
  Cubin get(int architecture = 90) const { return cubin_of(nvrtc, program, architecture, folder); }

  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }

  const Folder root;
  fs::path folder = root / "starling/cuda";
  Nvrtc nvrtc{other_nvrtc()};
  Program program{.source = {"folder/small.cuh", "text"}, .headers = {{"a.h", "one"}}, .options = {"--one"}};
};

TEST_F(CubinCache, CompilesOnce) {
  const Cubin first = get();
  EXPECT_FALSE(first.kept);
  EXPECT_EQ(first.trouble, "");
  EXPECT_THAT(first.bytes, testing::MatchesRegex("compilation [0-9]+ --gpu-architecture=sm_90 --one"));
  EXPECT_THAT(first.file.filename().string(), testing::StartsWith("small-sm_90-"));
  const Cubin again = get();
  EXPECT_TRUE(again.kept);
  EXPECT_EQ(again.bytes, first.bytes);
  EXPECT_EQ(again.file, first.file);
  EXPECT_EQ(files(), 1u);
}

TEST_F(CubinCache, KeepsApartWhatDiffers) {
  std::set<fs::path> all;
  const auto is_new = [&](const Cubin& cubin) { return !cubin.kept && all.insert(cubin.file).second; };
  EXPECT_TRUE(is_new(get()));
  EXPECT_TRUE(is_new(get(80)));
  program.options = {"--two"};
  EXPECT_TRUE(is_new(get()));
  program.options = {"--two", "--three"};
  EXPECT_TRUE(is_new(get()));
  program.headers[0].text = "other";
  EXPECT_TRUE(is_new(get()));
  program.headers[0].name = "b.h";
  EXPECT_TRUE(is_new(get()));
  program.source.text = "other";
  EXPECT_TRUE(is_new(get()));
  setenv("OTHER_NVRTC_MINOR", "1", 1);
  EXPECT_TRUE(is_new(get()));
  EXPECT_TRUE(get().kept);
  EXPECT_EQ(files(), all.size());
}

TEST_F(CubinCache, CompilesAgainWhatIsDamaged) {
  const fs::path file = get().file;
  const std::string whole = slurp(file);
  std::string flipped = whole, head = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  head[0] = 'S';
  program.options = {"--two"};
  const std::string of_another = slurp(get().file);  // complete, and its own checksum right
  program.options = {"--one"};
  for (const std::string& damaged : {std::string(), whole.substr(0, 10), whole.substr(0, whole.size() - 1),
                                     whole + "x", flipped, head, of_another}) {
    spill(file, damaged);
    const Cubin cubin = get();
    EXPECT_FALSE(cubin.kept) << damaged;
    EXPECT_THAT(cubin.bytes, testing::EndsWith(" --gpu-architecture=sm_90 --one"));
    EXPECT_TRUE(get().kept);
    EXPECT_EQ(get().bytes, cubin.bytes);
  }
}

TEST_F(CubinCache, ServesWhereNothingCanBeKept) {
  spill(root / "file", "");
  folder = root / "file/cuda";
  const Cubin cubin = get();
  EXPECT_FALSE(cubin.kept);
  EXPECT_THAT(cubin.bytes, testing::HasSubstr("compilation"));
  EXPECT_THAT(cubin.trouble, testing::AllOf(testing::HasSubstr(folder.string() + " cannot be made: "),
                                            testing::Not(testing::HasSubstr("\n"))));
  folder.clear();
  EXPECT_THAT(get().trouble, testing::HasSubstr("neither XDG_CACHE_HOME nor HOME"));
}

TEST_F(CubinCache, KeepsNothingOfWhatIsRefused) {
  program.source.text = "no";
  EXPECT_EQ(refusal([&] { get(); }),
            "NVRTC 99.0 cannot compile folder/small.cuh for sm_90: NVRTC_ERROR_COMPILATION: a.cu(1): error: "
            "no such | thing | 1 error detected.");
  EXPECT_FALSE(fs::exists(folder));
}

TEST(CubinFolder, IsTheUsersCache) {
  const char* const home = std::getenv("HOME");
  const std::string old_home = home == nullptr ? "" : home;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const std::string old_cache = cache == nullptr ? "" : cache;
  setenv("HOME", "/home/x", 1);
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(cubin_folder(), "/home/x/.cache/starling/cuda");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(cubin_folder(), "/cache/starling/cuda");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(cubin_folder(), "");
  if (home != nullptr) setenv("HOME", old_home.c_str(), 1);
  if (cache != nullptr) setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
}

}  // namespace
}  // namespace starling::kernels::cuda
