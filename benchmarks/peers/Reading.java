import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.Serializable;

/** One record of the works. Both peers decode it with the same code: Jackson's streaming parser. */
public class Reading implements Serializable {
    private static final long serialVersionUID = 1;
    private static final JsonFactory JSON = new JsonFactory();

    public String device;
    public long ts;
    public double temp;

    /** The record of these bytes; counts it. Throws IOException when it is none. */
    public static Reading of(byte[] json) throws IOException {
        Reading reading = new Reading();
        int fields = 0;
        try (JsonParser parser = JSON.createParser(json)) {
            parser.nextToken();
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                String name = parser.currentName();
                parser.nextToken();
                switch (name) {
                    case "device" -> reading.device = parser.getText();
                    case "ts" -> reading.ts = parser.getLongValue();
                    case "temp" -> reading.temp = parser.getDoubleValue();
                    default -> throw new IOException("unknown field " + name);
                }
                fields++;
            }
        }
        if (fields != 3) {
            throw new IOException("a reading has 3 fields, not " + fields);
        }
        Answer.RECORDS.increment();
        return reading;
    }
}
