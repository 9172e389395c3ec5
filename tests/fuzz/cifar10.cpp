// A file of CIFAR-10's binary version (data/cifar10.h): after the first byte, N mod 4 records of zeros
// and label N / 4, then the rest of the bytes.
#include "starling/data/cifar10.h"

#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto first = static_cast<unsigned char>(bytes.front());
  std::string whole;
  for (int i = 0; i < first % 4; ++i) {
    whole += static_cast<char>(first / 4);
    whole.append(static_cast<std::size_t>(Cifar10Images::kPixels), '\0');
  }
  whole += bytes.substr(1);
  const TemporaryFile file(whole, ".bin");
  accepted([&] {
    const Cifar10Images images({file.path(), file.path()});
    check(images.size() * Cifar10Images::kRecord == 2 * std::ssize(whole), "another number of images");
    for (std::int64_t i = 0; i < images.size(); ++i) {
      check(images.label(i) < Cifar10Images::kClasses, "a label outside");
      check(std::ssize(images.pixels(i)) == Cifar10Images::kPixels, "another size");
      check(static_cast<char>(images.pixels(i).back()) ==
                whole[static_cast<std::size_t>((i % (images.size() / 2) + 1) * Cifar10Images::kRecord - 1)],
            "another image");
    }
  });
}

}  // namespace starling::fuzz
