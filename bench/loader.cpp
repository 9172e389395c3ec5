// bench-loader FOLDER SIZE PASSES: images per second of computing of one thread that makes random
// views of the shards in FOLDER, and of bare libjpeg-turbo, which decodes all of each image. They
// take turns.
// Prints JSON.
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include <jpeglib.h>

#include "bench/measure.h"
#include "starling/data/image_loader.h"

namespace {

using starling::ImageShards;
using starling::ImageSize;

// Seconds that all threads of this process have computed. Other processes do not count.
double computed() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void decode_bare(const ImageShards& shards) {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  std::vector<unsigned char> row;
  for (std::int64_t i = 0; i < shards.size(); ++i) {
    const auto bytes = shards.jpeg(i);
    jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    row.resize(std::size_t{jpeg.output_width} * 3);
    JSAMPROW rows = row.data();
    while (jpeg.output_scanline < jpeg.output_height) jpeg_read_scanlines(&jpeg, &rows, 1);
    jpeg_finish_decompress(&jpeg);
  }
  jpeg_destroy_decompress(&jpeg);
}

int run(int argc, char** argv) {
  if (argc != 4) throw std::invalid_argument("wants FOLDER SIZE PASSES");
  const auto shards = std::make_shared<const ImageShards>(argv[1], "train");
  const int size = std::atoi(argv[2]), passes = std::atoi(argv[3]);
  starling::ImageLoader loader(1);
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < shards->size(); ++i) all.push_back(i);

  const auto images = static_cast<double>(shards->size());
  std::vector<double> mine, bare;
  for (int pass = 0; pass <= passes; ++pass) {
    const double begin = computed();
    decode_bare(*shards);
    const double middle = computed();
    const auto made = loader.start(shards, all, size, [pass](std::int64_t image, ImageSize whole) {
      return starling::random_view(whole, {}, static_cast<std::uint64_t>(1000 * pass + image));
    });
    made.wait();
    if (pass == 0) continue;  // a warm-up
    mine.push_back(images / (computed() - middle));
    bare.push_back(images / (middle - begin));
  }
  const nlohmann::json result{{"starling", bench::median(mine)}, {"libjpeg", bench::median(bare)}};
  std::puts(result.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::reported("bench-loader", [&] { return run(argc, argv); });
}
