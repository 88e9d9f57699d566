/* out = content + [cos | sin](2π · positions · frequencies), without ever holding the embedding.

   Compiled on first use by native.py. One pass: content is read once, out written once. The phase
   is taken in turns and in double, so that hours of audio keep their accuracy; what is left after
   the whole turns is a float. Single precision does the rest, eight or sixteen channels at a time
   (the inner loop is written so that compilers vectorise it). */

#include <math.h>

void cape_add_sinusoid(
    float *out,                /* (rows, 2 · half), contiguous */
    const float *content,      /* rows of 2 · half channels, `stride` apart */
    long stride,               /* floats from row to row; 0 repeats one row */
    const double *positions,   /* (rows, axes); NaN is padding, to which nothing is added */
    const double *frequencies, /* (axes, half), in turns per unit of position */
    long rows, long half, long axes)
{
    for (long row = 0; row < rows; row++) {
        const float *restrict in = content + row * stride;
        float *restrict sum = out + row * 2 * half;
        const double first = positions[row * axes];
        const double second = axes == 2 ? positions[row * axes + 1] : 0.0;
        const double *restrict along_first = frequencies;
        const double *restrict along_second = axes == 2 ? frequencies + half : frequencies;
        if (isnan(first) || isnan(second)) {
            for (long k = 0; k < 2 * half; k++) sum[k] = in[k];
            continue;
        }
        for (long k = 0; k < half; k++) {
            const double turns = first * along_first[k] + second * along_second[k];
            const float part = (float)(turns - rint(turns));       /* in ±1/2 turn */
            const float quarters = rintf(4.0f * part);             /* -2 … 2 */
            const float x = (part - 0.25f * quarters) * 6.28318530717958648f; /* in ±π/4 */
            const float y = x * x;
            /* minimax polynomials on ±π/4, as in Cephes' sinf and cosf */
            const float s = x + x * y * (-1.6666654611e-1f +
                                         y * (8.3321608736e-3f + y * -1.9515295891e-4f));
            const float c = 1.0f - 0.5f * y + y * y * (4.166664568298827e-2f +
                            y * (-1.388731625493765e-3f + y * 2.443315711809948e-5f));
            const int q = (int)quarters;
            const float sine = q & 1 ? c : s;
            const float cosine = q & 1 ? s : c;
            sum[k] = in[k] + ((q + 1) & 2 ? -cosine : cosine);
            sum[k + half] = in[k + half] + (q & 2 ? -sine : sine);
        }
    }
}
