// seeing_test.py checks real event files with TensorBoard's own reader.
#include "starling/train/tensorboard.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include "starling/core/error.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(EventFile, NamesTheFolderThatCannotBeMade) {
  EXPECT_THAT([] { EventFile("/dev/null/x"); },
              ThrowsMessage<Error>("/dev/null/x: cannot be made: Not a directory"));
}

TEST(EventFile, AFullDiskIsAnError) {
  const fs::path folder = fs::temp_directory_path() / "starling-event-file-test";
  fs::remove_all(folder);
  EventFile events(folder);
  const fs::path file = fs::directory_iterator(folder)->path();
  EXPECT_THAT(file.filename(), testing::ResultOf([](const fs::path& p) { return p.string(); },
                                                 testing::StartsWith("events.out.tfevents.")));
  const auto size = fs::file_size(file);
  events.write(1, {{"train/loss", 0.5}});
  EXPECT_GT(fs::file_size(file), size);  // there already
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  rlimit none = before;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_FSIZE, &none);
  std::string message = "no error";
  try {
    events.write(2, {{"train/loss", 0.25}});
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(message, file.string() + ": cannot be written: File too large");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace starling
