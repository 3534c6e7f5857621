// The optimizers' expressions, each written once for one element at a time (plain floats, on hosts
// and GPUs) and for the lanes of vector units: `Math` says what a Value is and rounds as IEEE
// float32 does. include/strata/element_ops.hpp documents them. Everything here decides bits.
//
// Without an include guard: included once for every set of instructions, inside its namespace, with
// STRATA_RULE set to what its functions need in front of them.

// UpdateCoefficients, each in all lanes.
template <class Value>
struct Coefficients {
  Value factor, decay, blend1, blend2, momentum, epsilon, step, second_scale;
};

// to += weight * (value - to)
template <class Math, class Value>
STRATA_RULE void blend(Value& to, Value weight, Value value) {
  to = Math::fma(weight, value - to, to);
}

// The gradient of the loss with weight decay as a penalty (L2).
template <class Math, class Value>
STRATA_RULE Value penalized(Value gradient, Value w, const Coefficients<Value>& c) {
  return Math::fma(c.decay, w, gradient * c.factor);
}

template <class Math, class Value>
STRATA_RULE void adam_step(Value g, Value& w, Value* m, const Coefficients<Value>& c) {
  blend<Math>(m[0], c.blend1, g);
  m[1] = Math::fma(c.blend2, Math::fms(g, g, m[1]), m[1]);
  const Value denominator = Math::fma(Math::sqrt(m[1]), c.second_scale, c.epsilon);
  w = Math::fnma(c.step, m[0] / denominator, w);
}

struct AdamW {
  static constexpr std::size_t kMoments = 2;
  template <class Math, class Value>
  STRATA_RULE static void update(Value gradient, Value& w, Value* m, const Coefficients<Value>& c) {
    w = Math::fnma(c.decay, w, w);
    adam_step<Math>(gradient * c.factor, w, m, c);
  }
};

struct Adam {
  static constexpr std::size_t kMoments = 2;
  template <class Math, class Value>
  STRATA_RULE static void update(Value gradient, Value& w, Value* m, const Coefficients<Value>& c) {
    adam_step<Math>(penalized<Math>(gradient, w, c), w, m, c);
  }
};

struct Sgd {
  static constexpr std::size_t kMoments = 0;
  template <class Math, class Value>
  STRATA_RULE static void update(Value gradient, Value& w, Value*, const Coefficients<Value>& c) {
    w = Math::fnma(c.step, penalized<Math>(gradient, w, c), w);
  }
};

struct Momentum {
  static constexpr std::size_t kMoments = 1;
  template <class Math, class Value>
  STRATA_RULE static void update(Value gradient, Value& w, Value* m, const Coefficients<Value>& c) {
    m[0] = Math::fma(c.momentum, m[0], penalized<Math>(gradient, w, c));
    w = Math::fnma(c.step, m[0], w);
  }
};

struct Nesterov {
  static constexpr std::size_t kMoments = 1;
  template <class Math, class Value>
  STRATA_RULE static void update(Value gradient, Value& w, Value* m, const Coefficients<Value>& c) {
    const Value g = penalized<Math>(gradient, w, c);
    m[0] = Math::fma(c.momentum, m[0], g);
    w = Math::fnma(c.step, Math::fma(c.momentum, m[0], g), w);
  }
};

struct Adagrad {
  static constexpr std::size_t kMoments = 1;
  template <class Math, class Value>
  STRATA_RULE static void update(Value gradient, Value& w, Value* m, const Coefficients<Value>& c) {
    const Value g = penalized<Math>(gradient, w, c);
    m[0] = Math::fma(g, g, m[0]);
    w = Math::fnma(c.step, g / (Math::sqrt(m[0]) + c.epsilon), w);
  }
};

struct Lion {
  static constexpr std::size_t kMoments = 1;
  template <class Math, class Value>
  STRATA_RULE static void update(Value gradient, Value& w, Value* m, const Coefficients<Value>& c) {
    const Value g = gradient * c.factor;
    Value direction = m[0];
    blend<Math>(direction, c.blend1, g);
    w = Math::fnma(c.decay, w, w);
    w = Math::fnma(c.step, Math::sign(direction), w);
    blend<Math>(m[0], c.blend2, g);
  }
};

// Calls `body` with a null pointer of the struct above that stands for `rule`.
template <class Body>
void with_rule(UpdateRule rule, Body&& body) {
  switch (rule) {
    case UpdateRule::adamw: return body(static_cast<AdamW*>(nullptr));
    case UpdateRule::adam: return body(static_cast<Adam*>(nullptr));
    case UpdateRule::sgd: return body(static_cast<Sgd*>(nullptr));
    case UpdateRule::momentum: return body(static_cast<Momentum*>(nullptr));
    case UpdateRule::nesterov: return body(static_cast<Nesterov*>(nullptr));
    case UpdateRule::adagrad: return body(static_cast<Adagrad*>(nullptr));
    case UpdateRule::lion: return body(static_cast<Lion*>(nullptr));
  }
  STRATA_ASSERT(false, "unknown update rule");
}
