// Decodes batches of images ahead of their use, on threads of its own. An image's pixels depend on
// its view alone, so any number of threads gives the same bits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/data/image_shards.h"
#include "starling/data/image_view.h"

namespace starling {

struct DecodedImages {
  at::Tensor images;  // uint8 [n, 3, size, size], channels-last
  at::Tensor labels;  // int64 [n]
  // The images that are broken, and are therefore not among these: a line for each.
  std::vector<std::string> skipped;
};

class ImageLoader {
 public:
  // pinned: images lie in memory from which CUDA copies while the host goes on. Throws Error if the
  // system has no thread left.
  explicit ImageLoader(int threads, bool pinned = false);
  // Waits for the images that are being decoded now, and leaves the others.
  ~ImageLoader();

  // Decodes these images as squares of `size` pixels along each side, after those of earlier calls.
  // `view` chooses what is seen of an image, given by its index and its size; the threads call it,
  // several at a time.
  using ChooseView = std::function<ImageView(std::int64_t image, ImageSize size)>;
  std::future<DecodedImages> start(std::shared_ptr<const ImageShards> shards,
                                   std::vector<std::int64_t> images, int size, ChooseView view);

 private:
  struct Job;
  void work();
  void end();

  const bool pinned_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::deque<std::shared_ptr<Job>> jobs_;  // those with images that no thread has taken yet
  std::vector<std::thread> threads_;       // last: they use the others
};

}  // namespace starling
