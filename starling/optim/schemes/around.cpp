#include "starling/optim/schemes/around.h"

namespace starling {

void Around::send() {
  for (Block& block : blocks_) mix_and_send(exchange_, block, {});
}

void Around::combine() {
  for (Block& block : blocks_) mix(block, finish(exchange_, block), {});
}

void Around::begin() {
  if (order_ != Order::combine_then_adapt) return;
  for (Block& block : blocks_) send_again(exchange_, block);
}

void Around::step() {
  if (order_ == Order::combine_then_adapt) {
    combine();
    adapt_();
    send();
  } else {
    adapt_();
    send();
    combine();
  }
}

}  // namespace starling
