#include "starling/world/store.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starling/world/folder_store.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

TEST(MemoryStore, WaitsForAKeyAndNamesTheOneThatDoesNotCome) {
  MemoryStore store;
  std::thread setter([&] { store.set("a", "1"); });
  EXPECT_EQ(store.get("a", std::chrono::minutes(5)), "1");
  setter.join();
  store.set("a", "2");
  EXPECT_EQ(store.get("a", milliseconds(0)), "2");
  EXPECT_EQ(refusal([&] { store.get("b", milliseconds(1)); }),
            "store: nobody has set the key 'b' within 1 ms");
  EXPECT_EQ(refusal([&] { store.get("b", std::chrono::hours(1), [] { return true; }); }),
            "store: interrupted while nobody had set the key 'b'");
}

class FolderStoreTest : public testing::Test {
 protected:
  const Folder folder_;
  FolderStore store_{folder_.path};
};

TEST_F(FolderStoreTest, KeepsAnyValueUnderAnyKey) {
  EXPECT_EQ(store_.look("a"), std::nullopt);
  const std::string all_bytes = [] {
    std::string bytes;
    for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
    return bytes;
  }();
  const std::vector<std::string> keys{"a", "A", "a/b", "a%2fb", "../a", ".", "", "new.1", "a b\n:", "\xff"};
  for (const std::string& key : keys) store_.set(key, key + all_bytes);
  for (const std::string& key : keys)
    EXPECT_EQ(FolderStore(folder_.path).get(key, milliseconds(0)), key + all_bytes);
  store_.set("a", "");
  EXPECT_EQ(store_.look("a"), "");
  for (const auto& file : std::filesystem::directory_iterator(folder_.path)) {
    using std::filesystem::perms;
    EXPECT_EQ(file.status().permissions(), perms::owner_read | perms::owner_write) << "its user's alone";
  }
}

TEST_F(FolderStoreTest, WaitsForAKeyAndNamesTheOneThatDoesNotCome) {
  std::thread setter([&] { store_.set("a", "1"); });
  EXPECT_EQ(store_.get("a", std::chrono::minutes(5)), "1");
  setter.join();
  EXPECT_EQ(refusal([&] { store_.get("b", milliseconds(1)); }),
            "store: nobody has set the key 'b' within 0.001 s in the folder \"" + folder_.path +
                "\": check that all workers were started and that none of them has ended");
  EXPECT_EQ(refusal([&] { store_.get("b", std::chrono::hours(1), [] { return true; }); }),
            "store: interrupted while nobody had set the key 'b'");
}

// So it does no harm if its process is killed or stopped within set().
TEST_F(FolderStoreTest, AKilledProcessLeavesTheOldValueOrTheNewOne) {
  const std::string values[] = {std::string(100'000, 'a'), std::string(100'000, 'b')};
  store_.set("key", values[0]);
  for (int kills = 0; kills < 50; ++kills) {
    const pid_t child = fork();
    if (child == 0) {
      for (std::size_t k = 0;; ++k) store_.set("key", values[k % 2]);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200 * kills));
    kill(child, kills % 2 == 0 ? SIGKILL : SIGSTOP);
    const std::string found = store_.get("key", milliseconds(0));
    EXPECT_TRUE(found == values[0] || found == values[1]);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    store_.set("key", values[0]);
  }
}

TEST_F(FolderStoreTest, IsLostWithItsFolderAndWhenItIsBackItIsBack) {
  store_.set("a", "1");
  const std::string away = folder_.path + ".away";
  std::filesystem::rename(folder_.path, away);
  EXPECT_EQ(refusal<StoreLost>([&] { store_.look("a"); }),
            "store: cannot get the key 'a': the folder \"" + folder_.path + "\" is gone");
  EXPECT_THAT(refusal<StoreLost>([&] { store_.set("a", "2"); }),
              testing::HasSubstr("store: cannot set the key 'a': "));
  std::filesystem::rename(away, folder_.path);
  EXPECT_EQ(store_.look("a"), "1");
}

TEST_F(FolderStoreTest, AFileOfAStrangeSizeIsAnError) {
  std::filesystem::create_directory(folder_ / "key.directory");
  EXPECT_EQ(
      refusal<StoreLost>([&] { store_.look("directory"); }),
      "store: cannot get the key 'directory': " + (folder_ / "key.directory") + ": is not a regular file");
  std::ofstream(folder_ / "key.large").close();
  std::filesystem::resize_file(folder_ / "key.large", (1 << 20) + 1);
  EXPECT_EQ(refusal<StoreLost>([&] { store_.look("large"); }),
            "store: cannot get the key 'large': " + (folder_ / "key.large") +
                ": offset 1048576: the file has 1048577 bytes; at most 1048576 are read");
}

}  // namespace
}  // namespace starling
