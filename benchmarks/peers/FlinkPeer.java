import java.io.IOException;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** The works on Flink: a cluster in this process, one job with state on the heap and checkpoints on the disk. */
public final class FlinkPeer {
    private FlinkPeer() {}

    /** The result of a window, and on the way there what is known of it. */
    public static class Result {
        public String device;
        public long startMs;
        public long readings;
        public double value;
    }

    public static void main(String[] arguments) throws Exception {
        Answer.haltOnFailure();
        Work work = Work.of(arguments);
        Configuration configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        configuration.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + work.directory() + "/checkpoints");
        configuration.set(PipelineOptions.GENERIC_TYPES, false);
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(work.parallelism(), configuration);
        environment.enableCheckpointing(work.snapshotEveryMs(), CheckpointingMode.EXACTLY_ONCE);
        environment.getConfig().enableObjectReuse();
        build(environment, work);
        Answer.report(work, environment.executeAsync(work.name()).getJobExecutionResult());
    }

    private static void build(StreamExecutionEnvironment environment, Work work) {
        KafkaSource<Reading> source = KafkaSource.<Reading>builder()
            .setBootstrapServers(work.bootstrap())
            .setTopics(work.topic())
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setValueOnlyDeserializer(new Decoder())
            .build();
        WatermarkStrategy<Reading> time = WatermarkStrategy
            .<Reading>forBoundedOutOfOrderness(Duration.ofMillis(work.delayMs()))
            .withTimestampAssigner((reading, ignored) -> reading.ts);
        KeyedStream<Reading, String> readings =
            environment.fromSource(source, time, work.topic()).keyBy(reading -> reading.device);
        Duration minute = Duration.ofMillis(Work.MINUTE);
        DataStream<Result> results;
        long everyMs;
        if (work.slides()) {
            everyMs = Work.SLIDE;
            results = readings
                .window(SlidingEventTimeWindows.of(minute, Duration.ofMillis(Work.SLIDE)))
                .aggregate(new CountAndMean(), new Place());
        } else {
            everyMs = Work.MINUTE;
            results = readings
                .window(TumblingEventTimeWindows.of(Duration.ofMillis(Work.TEN_SECONDS)))
                .aggregate(new CountAndMean(), new Place())
                .keyBy(result -> result.device)
                .window(TumblingEventTimeWindows.of(minute))
                .aggregate(new SumAndPeak(), new Place());
        }
        results.sinkTo(new AnswerSink(everyMs));
    }

    private static final class Decoder extends AbstractDeserializationSchema<Reading> {
        @Override
        public Reading deserialize(byte[] message) throws IOException {
            return Reading.of(message);
        }
    }

    /** `value` is the sum until the window closes. */
    private static final class CountAndMean implements AggregateFunction<Reading, Result, Result> {
        @Override
        public Result createAccumulator() {
            return new Result();
        }

        @Override
        public Result add(Reading reading, Result sums) {
            sums.readings++;
            sums.value += reading.temp;
            return sums;
        }

        @Override
        public Result getResult(Result sums) {
            Result result = new Result();
            result.readings = sums.readings;
            result.value = sums.value / sums.readings;
            return result;
        }

        @Override
        public Result merge(Result sums, Result more) {
            sums.readings += more.readings;
            sums.value += more.value;
            return sums;
        }
    }

    private static final class SumAndPeak implements AggregateFunction<Result, Result, Result> {
        @Override
        public Result createAccumulator() {
            Result nothing = new Result();
            nothing.value = Double.NEGATIVE_INFINITY;
            return nothing;
        }

        @Override
        public Result add(Result ten, Result peak) {
            return merge(peak, ten);
        }

        @Override
        public Result getResult(Result peak) {
            return peak;
        }

        @Override
        public Result merge(Result peak, Result more) {
            peak.readings += more.readings;
            peak.value = Math.max(peak.value, more.value);
            return peak;
        }
    }

    /** Says which window and key a result is of. */
    private static final class Place extends ProcessWindowFunction<Result, Result, String, TimeWindow> {
        @Override
        public void process(String device, Context context, Iterable<Result> results, Collector<Result> out) {
            for (Result result : results) {
                result.device = device;
                result.startMs = context.window().getStart();
                out.collect(result);
            }
        }
    }

    private record AnswerSink(long everyMs) implements Sink<Result> {
        @Override
        public SinkWriter<Result> createWriter(WriterInitContext context) {
            long windowMs = everyMs;
            return new SinkWriter<>() {
                @Override
                public void write(Result result, Context context) {
                    Answer.add(result.startMs / windowMs, result.readings, result.value);
                }

                @Override
                public void flush(boolean endOfInput) {}

                @Override
                public void close() {}
            };
        }
    }
}
