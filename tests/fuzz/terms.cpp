// The options that another worker says it has.
#include "starling/optim/terms.h"

#include "tests/fuzz/target.h"

void starling::fuzz::read(std::string_view bytes) {
  accepted([&] {
    const Terms theirs = read_terms(std::string(bytes), 3);
    check(read_terms(to_text(theirs), 3) == theirs, "is read as others");
    check(difference(theirs, 0, theirs, 3).empty(), "they differ from themselves");
    const Terms mine{{"topology", "ring"}, {"wire", "fp32"}};
    check(difference(mine, 0, theirs, 3).empty() == (mine == theirs), "a difference is not seen");
  });
}
