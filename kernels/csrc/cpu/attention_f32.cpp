#include "attention_impl.h"

namespace infopt {

void paged_attention_f32(const AttentionArgs& args) { PagedAttention<float>(args).run(); }

}  // namespace infopt
