"""Each stage as plain loops, written straight from the paper's equations (or the table of what the released code does).

Slow on purpose and free of the library: what they and the library share is the paper alone.
"""

import itertools
import math

import numpy as np


def correlation(src, trg):
    """Eq. 4: ReLU of the cosine. src (c, hs, ws), trg (c, ht, wt) → (hs, ws, ht, wt)."""
    (_, hs, ws), (_, ht, wt) = src.shape, trg.shape
    out = np.zeros((hs, ws, ht, wt))
    for i, j, k, m in itertools.product(range(hs), range(ws), range(ht), range(wt)):
        f, g = src[:, i, j], trg[:, k, m]
        out[i, j, k, m] = max(0.0, float(f @ g) / math.sqrt(float(f @ f)) / math.sqrt(float(g @ g)))
    return out


def interpolate(line, n):
    """Linear interpolation of a list to n places, end points kept."""
    out = []
    for i in range(n):
        place = i * (len(line) - 1) / (n - 1)
        low = min(int(place), len(line) - 2)
        out.append(line[low] + (place - low) * (line[low + 1] - line[low]))
    return np.array(out)


def resize(array, shape):
    """Multilinear resize, one axis after the other."""
    for axis, n in enumerate(shape):
        array = np.apply_along_axis(interpolate, axis, array, n)
    return array


def softmax(values):
    top = max(values)
    weights = [math.exp(v - top) for v in values]
    return [w / sum(weights) for w in weights]


def layer_norm(x, weight, bias):
    mean, var = x.mean(), x.var()
    return (x - mean) / math.sqrt(var + 1e-5) * weight + bias


def axial_angle(position, head, plane, heads, head_dim, base):
    """Planes of all heads are dealt to the axes ys, xs, yt, xt in turn; each round is the next, slower frequency."""
    number = head * head_dim // 2 + plane
    frequencies = heads * head_dim // 8
    return position[number % 4] * base ** (-(number // 4) / frequencies)


def rotate_axial(vector, position, head, heads, base=100.0):
    out = vector.copy()
    for plane in range(len(vector) // 2):
        angle = axial_angle(position, head, plane, heads, len(vector), base)
        x, y = vector[2 * plane], vector[2 * plane + 1]
        out[2 * plane] = math.cos(angle) * x - math.sin(angle) * y
        out[2 * plane + 1] = math.sin(angle) * x + math.cos(angle) * y
    return out


def _project(x, w, heads, head_dim):
    """x (t, dim) → q, k, v, each (heads, t, head_dim)."""
    flat = x @ w["to_qkv.weight"].T
    return flat.reshape(len(x), 3, heads, head_dim).transpose(1, 2, 0, 3)


def paper_attention(x, positions, w, heads, head_dim):
    """Eq. 5, 6 and 3, queries and keys rotated (Eq. 7 and the text after it)."""
    tau = head_dim**-0.5
    q, k, v = _project(x, w, heads, head_dim)
    w_q, w_k = w["to_q_score.weight"][0], w["to_k_score.weight"][0]
    out = np.zeros((len(x), heads * head_dim))
    for h in range(heads):
        rotated_q = np.array([rotate_axial(q[h, j], positions[j], h, heads) for j in range(len(x))])
        rotated_k = np.array([rotate_axial(k[h, j], positions[j], h, heads) for j in range(len(x))])
        alpha = softmax([tau * float(w_q @ rotated_q[j]) for j in range(len(x))])
        global_q = sum(alpha[j] * rotated_q[j] for j in range(len(x)))
        big_h = np.array([rotated_k[i] * global_q for i in range(len(x))])
        beta = softmax([tau * float(w_k @ big_h[j]) for j in range(len(x))])
        global_k = sum(beta[j] * big_h[j] for j in range(len(x)))
        for i in range(len(x)):
            update = w["to_update.weight"] @ (v[h, i] * global_k) + w["to_update.bias"]
            out[i, h * head_dim : (h + 1) * head_dim] = update + rotated_q[i]
    return out @ w["to_out.weight"].T + w["to_out.bias"]


def released_attention(x, positions, w, heads, head_dim):
    """The right-hand column of the comparison: scores from unrotated vectors, products folded, raw keys summed."""
    tau = head_dim**-0.5
    q, k, v = _project(x, w, heads, head_dim)
    w_q, w_k = w["to_q_score.weight"][0], w["to_k_score.weight"][0]
    sign = [(-1) ** int(sum(p)) for p in positions]
    fold = lambda u: np.array([u[2 * c] + u[2 * c + 1] for c in range(len(u) // 2)])  # noqa: E731
    out = np.zeros((len(x), heads * head_dim))
    for h in range(heads):
        alpha = softmax([tau * float(w_q @ q[h, j]) for j in range(len(x))])
        global_q = sum(alpha[j] * sign[j] * q[h, j] for j in range(len(x)))
        beta = softmax([tau * float(w_k @ fold(k[h, j] * global_q)) for j in range(len(x))])
        global_k = sum(beta[j] * sign[j] * k[h, j] for j in range(len(x)))
        for i in range(len(x)):
            update = w["to_update.weight"] @ fold(v[h, i] * global_k) + w["to_update.bias"]
            out[i, h * head_dim : (h + 1) * head_dim] = update + q[h, i]
    return out @ w["to_out.weight"].T + w["to_out.bias"]


def gelu(x):
    return np.vectorize(lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))))(x)


def _rotated(x, positions, w, heads, head_dim):
    q, k, v = (np.array(part) for part in _project(x, w, heads, head_dim))
    for h, j in itertools.product(range(heads), range(len(x))):
        q[h, j] = rotate_axial(q[h, j], positions[j], h, heads)
        k[h, j] = rotate_axial(k[h, j], positions[j], h, heads)
    return q, k, v


def _joined(heads, w):
    """heads (heads, t, head_dim) → their output map."""
    return np.concatenate(list(heads), axis=1) @ w["to_out.weight"].T + w["to_out.bias"]


def softmax_attention(x, positions, w, heads, head_dim):
    """Eq. 1 and 2, queries and keys rotated. With ``shorten.weight``: Linformer's, Eq. 7 of its paper."""
    q, k, v = _rotated(x, positions, w, heads, head_dim)
    out = np.zeros_like(q)
    for h in range(heads):
        keys, values = k[h], v[h]
        if "shorten.weight" in w:
            keys, values = w["shorten.weight"] @ keys, w["shorten.weight"] @ values
        for i in range(len(x)):
            alpha = softmax([float(q[h, i] @ key) * head_dim**-0.5 for key in keys])
            out[h, i] = sum(a * value for a, value in zip(alpha, values, strict=True))
    return _joined(out, w)


def performer_attention(x, positions, w, heads, head_dim):
    """Weights φ(q)·φ(k) with φ(x)_j = exp(ω_j·x - ‖x‖²/2), x divided by the fourth root of its width."""
    q, k, v = _rotated(x, positions, w, heads, head_dim)
    out = np.zeros_like(q)
    for h in range(heads):

        def phi(vector, directions=w["directions"][h]):
            vector = vector / head_dim**0.25
            return np.array([math.exp(float(o @ vector) - float(vector @ vector) / 2) for o in directions])

        for i in range(len(x)):
            weights = [float(phi(q[h, i]) @ phi(k[h, j])) for j in range(len(x))]
            out[h, i] = sum(a * v[h, j] for j, a in enumerate(weights)) / sum(weights)
    return _joined(out, w)


def block(x, w, attend):
    """A pre-norm block. x (t, d); attend (x, weights of the attention) → (t, d)."""
    attention = {key.removeprefix("attention."): v for key, v in w.items() if key.startswith("attention.")}
    normed = np.array([layer_norm(row, w["norm_attention.weight"], w["norm_attention.bias"]) for row in x])
    x = x + attend(normed, attention)
    normed = np.array([layer_norm(row, w["norm_ffn.weight"], w["norm_ffn.bias"]) for row in x])
    return x + gelu(normed @ w["ffn.0.weight"].T + w["ffn.0.bias"]) @ w["ffn.2.weight"].T + w["ffn.2.bias"]


def conv4d(x, weight, bias):
    """x (c, *grid), weight (e, c, k, k, k, k) → (e, *grid); the outside is zero."""
    grid, reach = x.shape[1:], weight.shape[-1] // 2
    out = np.zeros((len(weight), *grid))
    for place in itertools.product(*(range(n) for n in grid)):
        out[:, *place] = bias
        for tap in itertools.product(range(weight.shape[-1]), repeat=4):
            at = [p + t - reach for p, t in zip(place, tap, strict=True)]
            if all(0 <= p < n for p, n in zip(at, grid, strict=True)):
                out[:, *place] += weight[:, :, *tap] @ x[:, *at]
    return out


def soft_mutual(corr):
    """NC-Net's filter of one map: c · c / max over targets · c / max over sources."""
    out = np.zeros_like(corr)
    for i, j, k, m in np.ndindex(corr.shape):
        c = corr[i, j, k, m]
        out[i, j, k, m] = c * (c / corr[i, j].max()) * (c / corr[:, :, k, m].max())
    return out


def kernel_soft_argmax(scores, sigma, temperature, gaussian):
    """The paper's C^norm and its expectation. scores (hs, ws, ht, wt) → (hs, ws, 2), in [-1, 1]."""
    hs, ws, ht, wt = scores.shape
    out = np.zeros((hs, ws, 2))
    for i, j in itertools.product(range(hs), range(ws)):
        cells = list(itertools.product(range(ht), range(wt)))
        py, px = max(cells, key=lambda cell: scores[i, j, cell[0], cell[1]])
        kernel = [math.exp(-((y - py) ** 2 + (x - px) ** 2) / (2 * sigma**2)) for y, x in cells]
        logits = [scores[i, j, y, x] / temperature for y, x in cells]
        if gaussian == "logits":
            p = softmax([g * c for g, c in zip(kernel, logits, strict=True)])
        elif gaussian == "probabilities":
            p = [g * q for g, q in zip(kernel, softmax(logits), strict=True)]
            p = [v / sum(p) for v in p]
        else:
            p = softmax(logits)
        for weight, (y, x) in zip(p, cells, strict=True):
            out[i, j] += weight * np.array([2 * x / (wt - 1) - 1, 2 * y / (ht - 1) - 1])
    return out


def soft_sample(flow, point, threshold):
    """W^(k) and the weighted sum it stands for. flow (h, w, 2), point (x, y) in [-1, 1]."""
    h, w, _ = flow.shape
    weights = np.zeros((h, w))
    for i, j in itertools.product(range(h), range(w)):
        dx, dy = point[0] - (2 * j / (w - 1) - 1), point[1] - (2 * i / (h - 1) - 1)
        weights[i, j] = max(0.0, threshold - math.sqrt(dx * dx + dy * dy + 1e-5))
    return (flow * (weights / (weights.sum() + 1e-5))[..., None]).sum(axis=(0, 1))
