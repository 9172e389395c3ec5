#include "starling/core/file.h"

#include <cerrno>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "starling/core/descriptor.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

TEST(WriteOnce, AtTheEndOrAtAPlace) {
  const Folder folder;
  const std::string path = folder / "file";
  const Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_EQ(write_once(file.get(), "one two"), 7U);
  EXPECT_EQ(write_once(file.get(), "six", 4), 3U);
  EXPECT_EQ(write_once(file.get(), "."), 1U);  // where the first one ended
  EXPECT_EQ(slurp(path), "one six.");
}

TEST(WriteOnce, SaysByErrnoWhyNothingWasWritten) {
  const Descriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(write_once(full.get(), "text"), 0U);
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(write_once(-1, "text"), 0U);
  EXPECT_EQ(errno, EBADF);
}

TEST(WriteText, AFailureLeavesTheOldTextAlone) {
  const Folder folder;
  const std::string path = folder / "file", taken = folder / "taken";
  std::filesystem::create_directory(taken);
  write_text(path, "old");
  {
    const FullDisk full(3);
    EXPECT_EQ(refusal([&] { write_text(path, "new text"); }),
              path + ".tmp: cannot be written: File too large");
  }
  EXPECT_EQ(refusal([&] { write_text(taken, "text"); }), taken + ": cannot be put in place: Is a directory");
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(
      std::distance(std::filesystem::directory_iterator(folder.path), std::filesystem::directory_iterator()),
      2);  // no draft
}

}  // namespace
}  // namespace starling
