#include "base/fields.h"

#include <cstdint>
#include <string>
#include <tuple>

#include "check.h"

using namespace rose;

namespace {

struct One {
  std::int64_t first;
};

enum class Colour : std::uint8_t { kRed = 7 };

struct Three {
  std::string first;
  double second{2.5};
  Colour third;
};

struct Twelve {
  int a, b, c, d, e, f, g, h, i, j, k, l;
};

TEST(every_field_is_there_in_order) {
  const One one{41};
  CHECK_EQ(std::get<0>(fields_of(one)), 41);
  const Three three{"name", 0.5, Colour::kRed};
  CHECK(fields_of(three) == std::make_tuple(std::string{"name"}, 0.5, Colour::kRed));
  const Twelve twelve{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  CHECK(fields_of(twelve) == std::make_tuple(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
}

TEST(they_are_references) {
  Three three{"name", 0.5, Colour::kRed};
  const auto fields = fields_of(three);
  three.second = 3;
  CHECK_EQ(std::get<1>(fields), 3.0);
}

}  // namespace
