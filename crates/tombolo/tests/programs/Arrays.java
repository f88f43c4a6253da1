import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Large arrays and many small objects, made, dropped and moved by the collector, in two threads. */
final class Arrays {
    private static final int CHUNKS = 48;
    private static final int WORDS = 64 * 1024;

    private static long mix(long value) {
        value ^= value >>> 33;
        value *= 0xff51afd7ed558ccdL;
        return value ^ value >>> 33;
    }

    private static long[] filled(long number) {
        long[] words = new long[WORDS];
        for (int at = 0; at < WORDS; at++) words[at] = mix(number << 20 ^ at);
        return words;
    }

    private static long work(long self) {
        List<long[]> chunks = new ArrayList<>();
        Map<Integer, String> names = new HashMap<>();
        for (int number = 0; number < CHUNKS; number++) chunks.add(filled(self << 10 | number));
        for (int number = 0; number < 60_000; number++) names.put(number, "name " + number * self);
        for (int round = 0; round < 3; round++) {
            for (int number = round; number < CHUNKS; number += 3) chunks.set(number, filled(self << 10 | number));
            for (int number = round; number < 60_000; number += 5) names.put(number, "name " + number * self);
        }
        long sum = 0;
        for (int number = 0; number < CHUNKS; number++) {
            long[] words = chunks.get(number);
            for (int at = 0; at < WORDS; at++) {
                if (words[at] != mix((self << 10 | number) << 20 ^ at))
                    throw new AssertionError("chunk " + number + " word " + at);
                sum += words[at];
            }
        }
        for (int number = 0; number < 60_000; number++)
            if (!names.get(number).equals("name " + number * self)) throw new AssertionError("name " + number);
        return sum;
    }

    public static void main(String[] arguments) throws InterruptedException {
        long[] sums = new long[2];
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < sums.length; index++) {
            int self = index;
            Thread thread = new Thread(() -> sums[self] = work(self + 1));
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
        System.gc();
        System.out.println(sums[0] + " " + sums[1]);
        if (sums[0] == 0 || sums[1] == 0) System.exit(9);
    }
}
