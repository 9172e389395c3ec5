// seeing_test.py checks real event files with TensorBoard's own reader.
#include "starling/train/tensorboard.h"

#include <filesystem>

#include <gmock/gmock.h>

#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using testing::ThrowsMessage;

TEST(EventFile, NamesTheFolderThatCannotBeMade) {
  EXPECT_THAT([] { EventFile("/dev/null/x"); },
              ThrowsMessage<Error>("/dev/null/x: cannot be made: Not a directory"));
}

TEST(EventFile, AFullDiskIsAnError) {
  const Folder folder;
  EventFile events(folder.path);
  const fs::path file = fs::directory_iterator(folder.path)->path();
  EXPECT_THAT(file.filename(), testing::ResultOf([](const fs::path& p) { return p.string(); },
                                                 testing::StartsWith("events.out.tfevents.")));
  const auto size = fs::file_size(file);
  events.write(1, {{"train/loss", 0.5}});
  EXPECT_GT(fs::file_size(file), size);  // there already
  const FullDisk full(0);
  EXPECT_EQ(refusal([&] { events.write(2, {{"train/loss", 0.25}}); }),
            file.string() + ": cannot be written: File too large");
}

}  // namespace
}  // namespace starling
